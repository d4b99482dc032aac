package operate

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/internal/policies"
)

// Cause says why a stranded message does not reach its queue. The state of the broker now and the
// message itself show it. CauseBindingGone and CauseOver need WithManagement.
type Cause string

const (
	// CauseQueueGone: the queue does not exist, or cannot be reached.
	CauseQueueGone Cause = "queue_gone"
	// CauseBindingGone: the queue exists, and a binding or an exchange on the way to it does not.
	CauseBindingGone Cause = "binding_gone"
	// CauseKeyChanged: the message came out of its wait queue with another routing key than it had,
	// which a policy with dead-letter-routing-key does.
	CauseKeyChanged Cause = "key_changed"
	// CauseOver: the queue and its binding exist now.
	CauseOver Cause = "over"
	// CauseUnknown: the broker does not show it; Why says which question has no answer.
	CauseUnknown Cause = "unknown"
)

const (
	// maxAnswers bounds the names in memory: any publisher may have written them.
	maxAnswers = 1000
	// oneAnswer bounds one question to the broker.
	oneAnswer = 20 * time.Second
)

// causes asks the broker about the queues and exchanges of stranded messages, about each once.
type causes struct {
	ctx               context.Context
	run               audit.Runner
	manager           *policies.Manager
	queues, exchanges map[string]known
}

// known says whether a queue or an exchange exists, and the bindings from an exchange; err says why
// that is not known.
type known struct {
	exists   bool
	bindings []management.Bound
	err      error
}

// withCauses calls f with a connection for the questions.
func (o *Operator) withCauses(ctx context.Context, f func(*causes) error) error {
	conn, end, err := o.connect(ctx)
	if err != nil {
		return err
	}
	defer end()
	return f(&causes{
		ctx: ctx, run: conn.Do, manager: o.manager(ctx),
		queues: map[string]known{}, exchanges: map[string]known{},
	})
}

// remembered returns the answer of ask, which is called once for each name.
func remembered(answers map[string]known, name string, ask func() known) known {
	if answer, known := answers[name]; known {
		return answer
	}
	if len(answers) >= maxAnswers {
		clear(answers)
	}
	answers[name] = ask()
	return answers[name]
}

// queue asks for a queue.
func (c *causes) queue(name string) known {
	return remembered(c.queues, name, func() known {
		if name == "" || len(name) > 255 {
			return known{} // AMQP has no such name
		}
		ctx, cancel := context.WithTimeout(c.ctx, oneAnswer)
		defer cancel()
		_, err := audit.Passive(ctx, c.run, name)
		switch {
		case err == nil, audit.IsCode(err, amqp.ResourceLocked):
			return known{exists: true}
		case audit.IsCode(err, amqp.NotFound):
			return known{}
		}
		if _, found := c.manager.Queue(name); found {
			return known{exists: true}
		}
		return known{err: fmt.Errorf("the broker does not say whether queue %q exists: %w", name, err)}
	})
}

// from asks for the bindings of an exchange.
func (c *causes) from(exchange string) known {
	return remembered(c.exchanges, exchange, func() known {
		if c.manager == nil {
			return known{err: errors.New("AMQP does not show bindings: " + nameManagement)}
		}
		if list, found := c.manager.Bindings(exchange); found {
			return known{bindings: list, exists: true}
		}
		if c.manager.Err != nil {
			return known{err: c.manager.Err}
		}
		// The API answers "not found" to some users who may not look (F39).
		ctx, cancel := context.WithTimeout(c.ctx, oneAnswer)
		defer cancel()
		err := c.run(ctx, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(exchange, "direct", true, false, false, false, nil)
		})
		if audit.IsCode(err, amqp.NotFound) {
			return known{}
		}
		return known{err: errors.Join(errors.New("the management API does not show them"), err)}
	})
}

// of completes a message.
func (c *causes) of(l Letter) StrandedMessage {
	m := StrandedMessage{Letter: l}
	m.WaitQueue, _ = lastDeath(&l.Delivery)["queue"].(string)
	if l.Queue == "" {
		m.Cause, m.Why = CauseUnknown, "no header names its queue"
		return m
	}
	switch found := c.queue(l.Queue); {
	case found.err != nil:
		m.Cause, m.Why = CauseUnknown, found.err.Error()
	case !found.exists:
		m.Cause, m.Why = CauseQueueGone, fmt.Sprintf("queue %q %v", l.Queue, errMissing)
	default:
		m.Cause, m.Why = c.way(&l)
	}
	return m
}

// way looks at the way to a queue that exists. The message still has the exchange that could not
// place it, and its routing key there.
func (c *causes) way(l *Letter) (Cause, string) {
	d := &l.Delivery
	if d.Exchange == "" {
		return CauseUnknown, fmt.Sprintf("queue %q exists, and it is not noted which exchange could not "+
			"place the message", l.Queue)
	}
	missing, err := c.missing(d, l.Queue)
	if missing != "" {
		return CauseBindingGone, missing
	}
	keys, _ := lastDeath(d)["routing-keys"].([]any)
	if len(keys) > 0 && keys[0] != any(d.RoutingKey) {
		return CauseKeyChanged, fmt.Sprintf("its routing key was changed from %q to %q when its wait "+
			"was over; the likely cause is a policy with dead-letter-routing-key", keys[0], d.RoutingKey)
	}
	if err != nil {
		return CauseUnknown, fmt.Sprintf("queue %q exists, and its binding is not known: %v",
			l.Queue, err)
	}
	return CauseOver, fmt.Sprintf("queue %q exists, and so do the bindings from exchange %q to it",
		l.Queue, d.Exchange)
}

// missing follows a message from the exchange that it has to its queue, or to the next wait queue,
// and returns a text about the first exchange or binding that is not there.
func (c *causes) missing(d *amqp.Delivery, queue string) (text string, err error) {
	exchange := d.Exchange
	for range maxLevels {
		found := c.from(exchange)
		switch {
		case found.err != nil:
			return "", found.err
		case !found.exists:
			return fmt.Sprintf("exchange %q does not exist", exchange), nil
		}
		text, leadsOn := wayFrom(exchange, d.RoutingKey, queue)
		i := slices.IndexFunc(found.bindings, leadsOn)
		if i < 0 {
			return text, nil
		}
		if found.bindings[i].DestinationType == "queue" {
			return "", nil
		}
		exchange = found.bindings[i].Destination
	}
	return "", fmt.Errorf("more than %d exchanges lead to it", maxLevels)
}

// maxLevels is more than topology.Levels has.
const maxLevels = 64

// level matches the exchange of a level of topology.Levels.
var level = regexp.MustCompile(`\.level\.([0-9]{1,2})(?:\.|$)`)

// wayFrom returns which binding of an exchange leads on to the queue, and a text for the case that
// it is missing. Every strategy binds the queue to its return exchange. An exchange of Levels leads
// on by a bit of the routing key: to its wait queue, or to the next exchange.
func wayFrom(
	exchange, key, queue string,
) (missing string, leadsOn func(management.Bound) bool) {
	if m := level.FindStringSubmatch(exchange); m != nil {
		n, _ := strconv.Atoi(m[1])
		if bits := strings.Split(key, "."); n < len(bits) {
			want := strings.Repeat("*.", n) + bits[n] + ".#"
			return fmt.Sprintf("exchange %q has no binding with the routing key %q", exchange, want),
				func(b management.Bound) bool { return b.RoutingKey == want }
		}
	}
	return fmt.Sprintf("queue %q is not bound to exchange %q", queue, exchange),
		func(b management.Bound) bool {
			return b.DestinationType == "queue" && b.Destination == queue
		}
}
