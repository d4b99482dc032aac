package operate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/policies"
	"github.com/millpond-go/millpond/internal/scan"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/topology"
)

// Peek returns copies of up to n messages at the head of any queue of the vhost, as they are: a
// dead-letter or stranded queue for example. They cannot be acked. All go back to their places at
// once, so that the order stays; afterwards they carry the redelivered flag. While Peek looks, no
// other client gets them. It ends within ctx, and after 90 s at the latest. The package's
// documentation says which queues can be read safely.
func (o *Operator) Peek(
	ctx context.Context, queue string, n int,
) (found []amqp.Delivery, err error) {
	if n < 1 {
		return nil, fmt.Errorf("peek at queue %q: %d messages asked for, at least 1 is needed", queue, n)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	see := func(l Letter, _ error) bool {
		found = append(found, wire.Clone(&l.Delivery))
		return true
	}
	err = o.list(ctx, topology.Plan{}, queue, n, newLetter, Filter{}, n, see)
	if err != nil {
		err = fmt.Errorf("peek: %w", err)
	}
	return found, err
}

// giveBackLimit bounds the end of a look while nothing comes back. It waits 20 s for messages that
// are not back.
const giveBackLimit = time.Minute

// holdLimit is how long messages are held, well under the broker's consumer timeout of 30 min
// (F16).
var holdLimit = 15 * time.Minute

// taking is a scan of a queue with its connection. Every call that reads messages reads by it.
type taking struct {
	*scan.Scan
	reader
	frame int // the largest the broker takes
	// before, if it is set, is called before anything is given back.
	before func() error
	end    func()
	began  time.Time
}

// take begins to take up to limit messages of a queue, all that are there if it is less than 0,
// where that is proven to delete none. giveBack must be called.
func (o *Operator) take(
	ctx context.Context, plan topology.Plan, queue string, limit int,
) (*taking, error) {
	conn, end, err := o.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at queue %q: %w", queue, err)
	}
	t := &taking{reader: reader{o, conn, plan, queue}, end: end}
	var ch *amqp.Channel
	if err = t.check(ctx); err == nil {
		ch, err = conn.Channel()
	}
	if err != nil {
		end()
		return nil, fmt.Errorf("look at queue %q: %w", queue, err)
	}
	// The time of the check does not count: nothing was taken yet.
	t.began = time.Now()
	t.Scan, t.frame = scan.New(ctx, ch, queue, limit), conn.Config.FrameSize
	if t.frame <= 0 {
		t.frame = math.MaxInt
	}
	return t, nil
}

func (t *taking) next() (amqp.Delivery, bool, error) {
	d, ok, err := t.Next()
	return d, ok, t.explain(err)
}

// old reports whether messages have been held for as long as is safe.
func (t *taking) old() bool { return time.Since(t.began) > holdLimit }

// giveBack puts back the messages that were taken and not acked, and ends the connection.
func (t *taking) giveBack() (err error) {
	if t.before != nil {
		err = t.before()
	}
	return errors.Join(err, t.handBack())
}

func (t *taking) handBack() error {
	done := make(chan error, 1)
	go func() { done <- t.GiveBack() }()
	defer t.end()
	for given := 0; ; {
		select {
		case err := <-done:
			if missing := (*scan.MissingError)(nil); errors.As(err, &missing) {
				return t.explainMissing(missing.Messages)
			}
			return t.explain(err)
		case <-time.After(giveBackLimit):
		}
		before := given
		if given = t.Given(); given == before {
			return errors.New("the broker does not answer; " +
				"it gives the messages back when it notices that the connection is gone")
		}
	}
}

// explain adds the meaning of an error, where that is known.
func (t *taking) explain(err error) error {
	if audit.IsCode(err, amqp.FrameError) || errors.Is(err, amqp.ErrClosed) ||
		errors.Is(err, scan.ErrCancelled) {
		return fmt.Errorf("%w: message %d of queue %q or one soon behind it does not fit into a frame "+
			"(broker facts F16 and F25), or connection or queue were lost: %w",
			ErrUnreadable, t.Seen()+1, t.queue, err)
	}
	return err
}

// reader asks whether a queue may be read.
type reader struct {
	operator *Operator
	conn     *link.Conn
	plan     topology.Plan // where it has the queue, its arguments spare questions
	queue    string
}

// The ways out where policies are not seen.
const (
	nameManagement = "name the management API (WithManagement, --management)"
	sayNoPolicies  = "if you know that no policy sets delivery-limit on it, " +
		"say so (WithoutPolicyCheck, --no-policies)"
)

// check returns ErrUnsafePeek unless it is proven that looking at the queue deletes no message.
func (r *reader) check(ctx context.Context) error {
	if r.queue == "" || len(r.queue) > 255 {
		return fmt.Errorf("the name of the queue has %d bytes: AMQP allows 1 to 255", len(r.queue))
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := audit.Passive(ctx, r.conn.Do, r.queue); err != nil {
		return err
	}
	f, applied, err := r.ask(ctx)
	if err != nil {
		return err
	}
	if reason := r.unsafe(f, applied); reason != nil {
		return fmt.Errorf("%w: %w", ErrUnsafePeek, reason)
	}
	return nil
}

// checkPeek is check on another connection.
func (o *Operator) checkPeek(ctx context.Context, plan topology.Plan, queue string) error {
	err := o.call(ctx, func(ctx context.Context, conn *link.Conn) error {
		r := reader{o, conn, plan, queue}
		return r.check(ctx)
	})
	if err != nil {
		return fmt.Errorf("look at queue %q: %w", queue, err)
	}
	return nil
}

// ruled are the policies that apply to a queue.
type ruled struct {
	policies.Applied
	err error // why they are not known
}

// ask asks the broker for the type and arguments of the queue, and for the policies that apply.
func (r *reader) ask(ctx context.Context) (*audit.Facts, *ruled, error) {
	m := r.operator.manager(ctx)
	likely := amqp.Table{"x-queue-type": audit.Quorum, "x-delivery-limit": int64(audit.LargeLimit)}
	for _, q := range r.plan.Queues {
		if q.Name == r.queue {
			likely = q.Arguments
		}
	}
	version := audit.VersionOf(r.conn.Properties)
	f, err := audit.LearnDeclared(ctx, r.conn.Do, r.queue, likely, version, m)
	if err != nil {
		return nil, nil, err
	}
	switch list := m.Policies(); {
	case list != nil:
		return f, &ruled{Applied: list.Of(r.queue, f.Kind)}, nil
	case m == nil:
		return f, &ruled{err: errors.New("AMQP does not show them: " + nameManagement)}, nil
	}
	return f, &ruled{err: errors.Join(m.Err, m.PolicyErr)}, nil
}

// unsafe says why looking at a message may delete it; nil where the delivery limit of the queue is
// out of reach, or where it has none.
func (r *reader) unsafe(f *audit.Facts, applied *ruled) error {
	switch {
	case f.Kind == audit.Classic, f.Kind == audit.Stream:
		return nil // neither counts deliveries
	case f.Kind == "":
		return errors.New("its type could not be seen: grant the read permission, or " + nameManagement)
	case f.Kind != audit.Quorum:
		return fmt.Errorf("it is a queue of type %q, which is not known here", f.Kind)
	case !f.Known:
		return errors.New("its arguments could not be seen: " +
			"grant the configure permission, or " + nameManagement)
	}
	argument, set := audit.WholeNumber(f.Arguments["x-"+audit.LimitKey])
	old := !f.Version.AtLeast(4, 0) // where -1 acts like 0 (F30)
	if set && argument < audit.HarmlessLimit && (argument >= 0 || old) {
		return fmt.Errorf("its argument x-delivery-limit is %d, and each look at a message counts; "+
			"no policy raises that: move the messages to another queue, with a shovel for example", argument)
	}
	needsPolicy := !set && !old // against the default of 20
	if err := r.unseen(applied, needsPolicy); err != nil {
		return err
	}
	return r.limited(applied, needsPolicy)
}

// lowers reports whether the value of a policy's delivery-limit is in reach.
func lowers(value any) (limit int64, is bool) {
	n, ok := audit.WholeNumber(value)
	return n, ok && n >= 0 && n < audit.HarmlessLimit
}

// unseen says which policies of a quorum queue could not be seen, if that matters.
func (r *reader) unseen(applied *ruled, needsPolicy bool) error {
	switch {
	case r.operator.opts.noPolicies:
		return nil
	case applied.err != nil:
		return fmt.Errorf("it is a quorum queue, and its policies could not be seen: %w; or, %s",
			applied.err, sayNoPolicies)
	}
	for _, rule := range applied.Unreadable {
		value, set := rule.Policy.Definition[audit.LimitKey]
		if _, low := lowers(value); low || !set && needsPolicy {
			return fmt.Errorf("it is a quorum queue, and the pattern %q of %s cannot be read here, so "+
				"that the policy may apply: write the pattern without lookaheads and backreferences, "+
				"or, %s", rule.Policy.Pattern, rule.Source, sayNoPolicies)
		}
	}
	return nil
}

// limited names the delivery limits in reach, with the commands that raise them.
func (r *reader) limited(applied *ruled, needsPolicy bool) error {
	var problems, commands []string
	exempt := func(rule *policies.Rule, format string, args ...any) {
		problems = append(problems, fmt.Sprintf(format, args...))
		commands = append(commands, policies.RaiseLimit(r.operator.vhost, r.queue, rule))
	}
	for _, rule := range applied.Rules {
		if n, low := lowers(rule.Value); low && rule.Key == audit.LimitKey {
			exempt(&rule, "%s sets delivery-limit to %d", rule.Source, n)
		}
	}
	if len(problems) == 0 && needsPolicy && !applied.Surely(audit.LimitKey) {
		if applied.err != nil {
			return fmt.Errorf("it has no x-delivery-limit, so that its limit is %d by default, and each "+
				"look at a message counts; where a policy raises the limit, %s",
				audit.DefaultDeliveryLimit, nameManagement)
		}
		exempt(applied.User(), "its delivery limit is %d by default", audit.DefaultDeliveryLimit)
	}
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%s, and each look at a message counts; exempt the queue: %s",
		strings.Join(problems, ", "), strings.Join(commands, "; "))
}

// bounds are the keys, of arguments with x- before them, under which messages leave a queue by
// themselves or come back to it late (F38).
var bounds = []string{"message-ttl", "max-length", "max-length-bytes", "delayed-retry-type"}

// explainMissing returns an error about messages that are not back after a look, with the reason as
// far as it is known. It returns nil where messages may leave the queue by themselves, because an
// argument or a policy bounds their life or their number, or holds messages that were given back
// for a while.
func (r *reader) explainMissing(missing int) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	f, applied, err := r.ask(ctx)
	if err != nil {
		return fmt.Errorf("look at queue %q: %w", r.queue, err)
	}
	policy := applied.Definition()
	for _, key := range bounds {
		_, argument := f.Arguments["x-"+key]
		if _, set := policy[key]; set || argument && f.Known {
			return nil
		}
	}
	text := fmt.Sprintf("look at queue %q: %d messages that were given back are not in it: "+
		"another client has taken them, or the broker has deleted them", r.queue, missing)
	switch unsafe := r.unsafe(f, applied); {
	case unsafe != nil:
		return fmt.Errorf("%s: %w", text, unsafe) // not ErrUnsafePeek: the look was done
	case applied.err != nil:
		return fmt.Errorf("%s, by a policy that was not seen: %w", text, applied.err)
	}
	return errors.New(text)
}
