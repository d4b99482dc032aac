package topologytest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/ladder"
	"github.com/millpond-go/millpond/topology"
)

// start connects, and starts a service on two queues.
func (s *suite) start(tr *trial) {
	conn, err := amqp.DialConfig(s.URL, amqp.Config{
		Properties: amqp.Table{"connection_name": "topologytest"},
	})
	tr.Must(err, "connect to RabbitMQ at Config.URL")
	s.conn = conn
	tr.Cleanup(func() error { return errors.Join(s.parts.remove(s), conn.Close()) })
	s.a, s.b = s.inbox(tr, "a", s.delays()), s.inbox(tr, "b", s.delays())
	s.refuseOthers(tr, s.a.plan)
	s.main = s.serve(tr, s.URL, backoffList(s.delays()), s.a, s.b)
	s.read(tr, s.a.plan.Dead, s.b.plan.Dead)
}

// delays of the policy of the service.
func (s *suite) delays() []time.Duration {
	return []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, time.Second}
}

// planned returns how long a message waits at most by a plan for each delay, in all rounds, and all
// together. It does not ask Plan.Route, which is tested with it.
func planned(p topology.Plan, delays ...time.Duration) (total time.Duration) {
	for _, asked := range delays {
		if l := p.Levels; l != nil {
			asked += time.Duration(float64(asked) * l.Tolerance)
			total += (asked + l.Resolution - 1).Truncate(l.Resolution)
		} else {
			total += ladder.Total(stepsOf(p), asked)
		}
	}
	return total
}

// inRounds reports whether a message that asks for a delay waits in more than one round.
func inRounds(p topology.Plan, asked time.Duration) bool {
	if l := p.Levels; l != nil {
		return asked > l.Resolution<<l.Levels-l.Resolution
	}
	return !slices.Contains(stepsOf(p), planned(p, asked))
}

// stepsOf returns the delays that have a wait step, ascending.
func stepsOf(p topology.Plan) (steps []time.Duration) {
	for _, step := range p.WaitSteps {
		steps = append(steps, step.Delay)
	}
	return slices.Compact(steps)
}

// footprint is all that the suite has had declared.
type footprint struct {
	mu     sync.Mutex
	plans  []topology.Plan
	shared map[string]bool // queues and exchanges that the plan of another queue has, too
	kept   map[string]bool // parts that were not deleted
}

// add notes a plan, and the plan of another queue with the same delays.
func (f *footprint) add(plan, other topology.Plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plans = append(f.plans, plan)
	if f.shared == nil {
		f.shared = map[string]bool{}
	}
	for _, name := range namesOf(plan) {
		if slices.Contains(namesOf(other), name) {
			f.shared[name] = true
		}
	}
}

func queueName(name string) string    { return fmt.Sprintf("queue %q", name) }
func exchangeName(name string) string { return fmt.Sprintf("exchange %q", name) }

// namesOf returns the names of all that a plan declares.
func namesOf(p topology.Plan) (names []string) {
	for _, q := range p.Queues {
		names = append(names, queueName(q.Name))
	}
	for _, e := range p.Exchanges {
		names = append(names, exchangeName(e.Name))
	}
	return names
}

// remains reports whether a part is left alone, because another program may use it.
func (s *suite) remains(name string) bool { return s.parts.shared[name] && !s.DeleteShared }

// remove deletes all that the suite has had declared, apart from what others may share. It is
// called when no service runs.
func (f *footprint) remove(s *suite) (failed error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gone := map[string]bool{}
	f.kept = map[string]bool{}
	remove := func(name string, del func(*amqp.Channel) error) {
		switch {
		case gone[name]:
		case s.remains(name):
			f.kept[name] = true
		default:
			gone[name] = true
			if err := s.onChannel(del); err != nil {
				failed = errors.Join(failed, fmt.Errorf("cannot delete %s: %w", name, err))
			}
		}
	}
	for _, plan := range f.plans {
		for _, q := range append(plan.Queues, topology.Queue{Name: plan.Queue}) {
			remove(queueName(q.Name), func(ch *amqp.Channel) error {
				_, err := ch.QueueDelete(q.Name, false, false, false)
				return err
			})
		}
		for _, e := range plan.Exchanges {
			remove(exchangeName(e.Name), func(ch *amqp.Channel) error {
				return ch.ExchangeDelete(e.Name, false, false)
			})
		}
	}
	return failed
}

// tellKept logs the parts that were not deleted.
func (f *footprint) tellKept(tr *trial) {
	if len(f.kept) > 0 {
		tr.Logf("these stay, because other programs may use them; Config.DeleteShared deletes them, "+
			"too: %s", strings.Join(slices.Sorted(maps.Keys(f.kept)), ", "))
	}
}

// onChannel calls f with a new channel, because an error of the broker closes the channel.
func (s *suite) onChannel(f func(*amqp.Channel) error) error {
	ch, err := s.conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }() // An error of the broker has closed it.
	return f(ch)
}

// look returns the ready messages and the consumers of a queue.
func (s *suite) look(queue string) (found amqp.Queue, err error) {
	err = s.onChannel(func(ch *amqp.Channel) error {
		found, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	})
	return found, err
}

// keepers are the queues of a plan in which messages stay.
func keepers(p topology.Plan) (names []string) {
	for _, q := range p.Queues {
		if q.Delay == 0 {
			names = append(names, q.Name)
		}
	}
	return names
}

// refuseOthers ends the trial if the suite would read messages of other programs.
func (s *suite) refuseOthers(tr *trial, plan topology.Plan) {
	for _, queue := range keepers(plan) {
		found, err := s.look(queue)
		var refused *amqp.Error
		if errors.As(err, &refused) && refused.Code == amqp.NotFound {
			continue
		}
		tr.Must(err, "look at queue %q", queue)
		if found.Messages+found.Consumers > 0 {
			tr.Fatalf("queue %q exists, with %d messages and %d consumers: this test would take them away. "+
				"Give the strategy names of this test alone, such as another Prefix, or use another vhost",
				queue, found.Messages, found.Consumers)
		}
	}
}
