package topologytest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/topology"
)

func ownQueueOnly(tr *trial, s *suite) {
	const each = 10
	ids := map[*inbox][]string{}
	for i := range each {
		for _, b := range []*inbox{s.a, s.b} {
			msg, id := s.text(tr, fmt.Sprintf("%s.%d", b.queue[len(b.queue)-1:], i))
			s.send(tr, b, msg, fails(2, errClosed))
			ids[b] = append(ids[b], id)
		}
	}
	due := planned(s.a.plan, s.delays()[:2]...)
	for b, other := range map[*inbox]*inbox{s.a: s.b, s.b: s.a} {
		for _, id := range ids[b] {
			s.awaitCalls(tr, b, id, due)
			if n := len(other.callsOf(id)); n > 0 {
				tr.Errorf("queue %q got a message of queue %q %d times: a message must return to the queue "+
					"that failed it. Let no wait queue or exchange lead to both", other.queue, b.queue, n)
			}
		}
	}
}

func hundredArriveOnce(tr *trial, s *suite) {
	const messages = 100
	var ids []string
	for i := range messages {
		msg, id := s.text(tr, fmt.Sprint(i))
		s.send(tr, s.a, msg, fails(1, errClosed))
		ids = append(ids, id)
	}
	due := planned(s.a.plan, s.delays()[0])
	calls := func() (all int) {
		for _, id := range ids {
			all += len(s.a.callsOf(id))
		}
		return all
	}
	if !tr.Await(due, func() bool { return calls() >= 2*messages }) {
		tr.Fatalf("of %d messages that failed once, %d are back after %v: the others are lost. %s",
			messages, calls()-messages, due+tr.Patience, s.main.log)
	}
	for _, id := range ids {
		if n := len(s.awaitCalls(tr, s.a, id, due)); n != 2 {
			tr.Errorf("a message that failed once was handled %d times in place of 2: the plan "+
				"doubles messages. Let each route lead to one wait queue", n)
		}
	}
}

// declares makes a Subscriber with a policy. Its SubscribeInitialize declares queue and plan.
func (s *suite) declares(
	tr *trial, client *topology.Client, delays []time.Duration,
) *topology.Subscriber {
	sub, err := client.NewSubscriberWithoutRetry(s.queueConfig(s.URL),
		topology.ForPolicy(backoffList(delays)))
	tr.Must(err, "make a Subscriber")
	tr.Cleanup(sub.Close)
	return sub
}

func declaringTwice(tr *trial, s *suite) {
	b := s.inbox(tr, "declared", s.delays())
	var subs []*topology.Subscriber
	for range 2 {
		subs = append(subs, s.declares(tr, s.openClient(tr, s.URL, &journal{}), s.delays()))
	}
	for _, when := range []string{"by two clients at once", "again"} {
		var wg sync.WaitGroup
		for _, sub := range subs {
			wg.Go(func() {
				if err := sub.SubscribeInitialize(b.queue); err != nil {
					tr.Errorf("the plan cannot be declared %s: %v. Each instance of a service declares it "+
						"at its start", when, err)
				}
			})
		}
		wg.Wait()
	}
}

func anotherPolicy(tr *trial, s *suite) {
	if s.FixedDelays {
		tr.Skipf("Config.FixedDelays is set")
	}
	before := []time.Duration{200 * time.Millisecond, 1500 * time.Millisecond}
	after := []time.Duration{800 * time.Millisecond}
	b := s.inbox(tr, "changed", before)
	err := s.declares(tr, s.main.client, before).SubscribeInitialize(b.queue)
	tr.Must(err, "declare a plan")
	b.plan = s.planOf(tr, b.queue, after)
	s.parts.add(b.plan, s.planOf(tr, s.queue("another"), after))
	s.serve(tr, s.URL, backoffList(after), b)
	msg, id := s.text(tr, "1")
	due := planned(b.plan, after[0])
	s.send(tr, b, msg, fails(1, errClosed))
	calls := s.awaitCalls(tr, b, id, due)
	s.requireWait(tr, b.plan, calls[0], calls[1], after[0])
	// A copy on an old way is back at the latest after the longest old delay.
	time.Sleep(max(0, planned(b.plan, before[1])-calls[1].at.Sub(calls[0].at)))
	if n := len(b.callsOf(id)); n != 2 {
		tr.Errorf("a message that failed once was handled %d times in place of 2, after a change of the "+
			"policy: parts of the old plan still take messages. Let the names of exchanges tell the "+
			"delays apart, or let their routing keys do it", n)
	}
}

func queueIsDeleted(tr *trial, s *suite) {
	const wait = 2 * time.Second
	delays := []time.Duration{wait}
	b := s.inbox(tr, "deleted", delays)
	kept := slices.DeleteFunc(keepers(b.plan), func(queue string) bool {
		letters := b.plan.Dead.Exchange == "" && queue == b.plan.Dead.RoutingKey
		return letters || queue == b.plan.Line
	})
	if len(kept) == 0 {
		tr.Skipf("not tried, because the plan has no queue for such messages: a quorum wait queue " +
			"holds them, invisible, until up to three minutes after the queue is back; a classic wait " +
			"queue loses them")
	}
	sub := s.declares(tr, s.main.client, delays)
	pub, err := s.main.client.NewPublisher(s.queueConfig(s.URL),
		topology.WithDelays(wait))
	tr.Must(err, "make a Publisher")
	tr.Cleanup(pub.Close)
	for try := range 5 {
		tr.Must(sub.SubscribeInitialize(b.queue), "declare a plan")
		_, id := s.text(tr, fmt.Sprint(try))
		tr.Must(pub.Publish(b.queue, delayed(id, wait)), "publish a message with a delay")
		var back int
		tr.Must(s.onChannel(func(ch *amqp.Channel) (err error) {
			back, err = ch.QueueDelete(b.queue, false, false, false)
			return err
		}), "delete queue %q", b.queue)
		if back > 0 { // The machine is busy: the message was back before the queue was deleted.
			continue
		}
		for _, queue := range kept {
			s.read(tr, topology.Route{RoutingKey: queue})
		}
		s.awaitLetter(tr, id, "queue "+strings.Join(kept, " or "))
		return
	}
	tr.Fatalf("five messages that had to wait for %v were back before their queue was deleted", wait)
}

// rest are the messages that are in a queue of the suite, or on their way to it.
func (s *suite) rest(tr *trial, b *inbox) (left int) {
	queues := []string{b.queue}
	for _, q := range b.plan.Queues {
		if q.Delay > 0 && !s.remains(queueName(q.Name)) {
			queues = append(queues, q.Name)
		}
	}
	for _, queue := range queues {
		found, err := s.look(queue)
		tr.Must(err, "look at queue %q", queue)
		left += found.Messages
	}
	return left
}

// nothingIsLeft finds messages that were handled more often than their scripts say.
func nothingIsLeft(tr *trial, s *suite) {
	for _, b := range []*inbox{s.a, s.b} {
		if !tr.Await(s.delays()[2], func() bool { return s.rest(tr, b) == 0 }) {
			tr.Errorf("%d messages are left in queue %q and its wait queues", s.rest(tr, b), b.queue)
		}
		b.mu.Lock()
		for id, calls := range b.calls {
			if want := b.scripts[id].calls; len(calls) != want {
				tr.Errorf("queue %q got the message %s %d times in place of %d", b.queue, id, len(calls), want)
			}
		}
		b.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, letters := range s.letters {
		if len(letters) > 1 {
			tr.Errorf("the message %s is a dead letter %d times", id, len(letters))
		}
	}
}
