package operate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/topology"
)

const (
	// Unconsumed: the queue has no consumer, so that messages wait in it until one comes.
	Unconsumed Problem = "unconsumed"
	// Forbidden: the user lacks a right that is needed.
	Forbidden Problem = "forbidden"
)

// Rehearsal is the outcome of Rehearse.
type Rehearsal struct {
	// Progress counts as Replay would: Chosen are the letters that would be replayed. Refused are the
	// other letters of the filter, whose headers do not fit into a frame.
	Progress
	// Target is the queue that would get them, with its ready messages and consumers, which are
	// unknown where it is missing.
	Target           string `json:"target"`
	Ready, Consumers Count
	// Largest is the size of the largest payload of a chosen letter, in bytes.
	Largest int `json:"largest,omitempty"`
	// Expiring are the chosen letters with an expiration, or dead because their time was over. A
	// replay leaves the expiration out, so that they do not expire again.
	Expiring int `json:"expiring,omitempty"`
	// Findings are the findings of Verify and the obstacles of this replay, the critical ones first.
	Findings []Finding `json:"findings"`
}

// largeMessage is the default limit of RabbitMQ 4, which a user cannot see.
const largeMessage = 16 << 20

// Rehearse says what becomes of a replay with these options, and moves nothing: which letters it
// chooses, whether the target exists, has a consumer and room, and which settings drop messages.
// Edit is called, and its result is dropped. Options that Ramp refuses give ErrInvalidOptions.
//
// That the user may publish is tried with a message for a queue that does not
// exist, which the broker returns; that it may read the dead letters is seen by reading them. Only
// the management API shows policies, and a finding says if it was not asked.
func (o *Operator) Rehearse(
	ctx context.Context, plan topology.Plan, options RampOptions,
) (Rehearsal, error) {
	h := Rehearsal{Target: plan.Queue, Ready: unknown, Consumers: unknown}
	if options.To != "" {
		h.Target = options.To
	}
	_, err := options.checked()
	if err == nil {
		err = h.choose(ctx, o, plan, options.MoveOptions)
	}
	if err == nil && h.Target != plan.Queue {
		plan = topology.Plan{Queue: h.Target}
	}
	if err == nil {
		err = o.call(ctx, func(ctx context.Context, conn *link.Conn) error {
			return h.inspect(ctx, conn, o, plan)
		})
	}
	if err != nil {
		return h, fmt.Errorf("rehearse the replay for queue %q: %w", h.Target, err)
	}
	return h, nil
}

// choose counts the letters.
func (h *Rehearsal) choose(
	ctx context.Context, o *Operator, plan topology.Plan, options MoveOptions,
) error {
	options.DryRun = true
	r := o.moving(plan, options)
	r.would = func(l Letter) {
		h.Largest = max(h.Largest, len(l.Delivery.Body))
		if l.Delivery.Expiration != "" || !l.Deadline.IsZero() {
			h.Expiring++
		}
	}
	err := r.prepare(ctx)
	for again := true; again && err == nil; {
		h.Largest, h.Expiring = 0, 0 // a round counts again
		again, err = r.round(ctx)
	}
	h.Progress = r.now()
	h.Chosen -= h.Refused
	return err
}

// inspect looks at the target.
func (h *Rehearsal) inspect(
	ctx context.Context, conn *link.Conn, o *Operator, plan topology.Plan,
) error {
	v := newVerifier(o, plan)
	if err := v.verify(ctx, conn); err != nil {
		return err
	}
	main := v.report.Queues[0]
	h.Ready, h.Consumers = main.Ready, main.Consumers
	if h.Consumers.Known() && h.Consumers.N == 0 {
		v.critical(Unconsumed, "queue", h.Target, "has no consumer, so that the letters wait in it: "+
			"start its service first")
	}
	if h.Ready.Known() {
		h.room(v)
	}
	h.publishes(ctx, v)
	if h.Largest > largeMessage && v.version.AtLeast(4, 0) {
		v.warning(Exposed, "broker", "", "the largest payload has %d bytes, and RabbitMQ 4 refuses "+
			"messages of more than %d unless max_message_size is larger, which cannot be seen",
			h.Largest, largeMessage)
	}
	for i, f := range v.findings {
		if f.Problem == Stranded { // no obstacle for the letters, and perhaps of another queue
			v.findings[i].Severity = Warning
		}
	}
	slices.SortStableFunc(v.findings, func(a, b Finding) int { return rank(a) - rank(b) })
	h.Findings = v.findings
	return nil
}

// room compares the letters with the length that the target may have.
func (h *Rehearsal) room(v *verifier) {
	f, ready := v.known[h.Target], h.Ready.N
	for _, value := range []any{f.Arguments["x-max-length"], f.Policy["max-length"]} {
		most, ok := audit.WholeNumber(value)
		if ok && int64(ready)+int64(h.Chosen) > most {
			v.critical(Dropping, "queue", h.Target, "has %d messages and room for %d, and %d letters would "+
				"come: replay fewer, slower than its consumers work, or raise its max-length",
				ready, most, h.Chosen)
			return
		}
	}
}

// publishes asks whether the user may publish to the default exchange. No queue has the name that
// the message is for.
func (h *Rehearsal) publishes(ctx context.Context, v *verifier) {
	err := v.operator.publish(ctx, "", "millpond-rehearsal-"+rand.Text(), amqp.Publishing{})
	switch {
	case errors.Is(err, topology.ErrUnroutable):
	case audit.IsCode(err, amqp.AccessRefused):
		v.critical(Forbidden, "exchange", "amq.default", "the user may not publish to queues by their "+
			"names: grant the write permission on amq.default")
	default:
		v.warning(Unchecked, "broker", "", "whether the user may publish could not be seen: %v", err)
	}
}
