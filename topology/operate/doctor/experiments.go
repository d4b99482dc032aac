package doctor

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/topology"
)

const (
	// arrival is how long a message that is due is waited for. F6 has milliseconds.
	arrival = 10 * time.Second
	// waitTime is the TTL of a wait.
	waitTime = time.Second
	// late is the delay from which a busy machine explains no lateness.
	late = 2 * time.Second
	// manyMessages is the largest number that one check publishes at once.
	manyMessages = 20
)

// waiting declares a wait queue for messages of a queue, as a strategy does.
func (b *bench) waiting(
	kind topology.QueueType, queue string, delay time.Duration, extra amqp.Table,
) topology.Queue {
	plan, err := topology.PerQueue{Type: kind, WaitArguments: extra}.Plan(
		queue, []time.Duration{delay})
	b.must(err)
	i := slices.IndexFunc(plan.Queues, func(q topology.Queue) bool { return q.Delay == delay })
	b.declare(plan.Queues[i])
	return plan.Queues[i]
}

// keeping is a queue that keeps messages, as a strategy declares its dead-letter queue.
func (b *bench) keeping(kind topology.QueueType, name string) topology.Queue {
	plan, err := topology.PerQueue{Type: kind}.Plan(b.prefix+name, nil)
	b.must(err)
	q := plan.Queues[len(plan.Queues)-1]
	q.Name = b.prefix + name
	return q
}

// kept declares a queue that keeps messages, and returns its name.
func (b *bench) kept(kind topology.QueueType, name string) string {
	q := b.keeping(kind, name)
	b.declare(q)
	return q.Name
}

// pair declares a queue and a wait queue before it.
func (b *bench) pair(
	kind topology.QueueType, name string, delay time.Duration,
) (queue, wait string) {
	queue = b.kept(kind, name)
	return queue, b.waiting(kind, queue, delay, nil).Name
}

// waits sends three messages through a wait queue, one after the other. A single early message is a
// difference. A single late message may be a pause of a busy machine.
func waits(kind topology.QueueType) experiment {
	return func(b *bench) (Status, string) {
		queue, wait := b.pair(kind, string(kind), waitTime)
		var times []time.Duration
		for range 3 {
			began := time.Now()
			b.enter("", wait, amqp.Publishing{})
			back := b.take(queue, 1, arrival)
			if len(back) == 0 {
				return Differs, fmt.Sprintf("a message has not returned within %v", arrival)
			}
			times = append(times, back[0].at.Sub(began))
		}
		earliest, latest := slices.Min(times), slices.Max(times)
		return okIf(earliest >= waitTime && earliest <= waitTime+late,
			"3 messages returned after %d to %d ms", earliest.Milliseconds(), latest.Milliseconds())
	}
}

// typed has a header of each type that amqp091-go reads and writes.
func typed() amqp.Table {
	return amqp.Table{
		"text": "a", "bytes": []byte{0, 255}, "true": true, "none": nil,
		"int8": int8(-1), "int16": int16(-2), "int32": int32(-3), "int64": int64(1) << 40,
		"float32": float32(0.5), "float64": 0.25, "decimal": amqp.Decimal{Scale: 2, Value: 314},
		"time":  time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		"table": amqp.Table{"inner": int32(1)}, "list": []any{int64(1), "b", amqp.Table{"c": true}},
	}
}

func headerTypes(b *bench) (Status, string) {
	queue, wait := b.pair(topology.Quorum, "headers", 200*time.Millisecond)
	b.enter("", wait, amqp.Publishing{Headers: typed()})
	back := b.take(queue, 1, arrival)
	if len(back) == 0 {
		return Unknown, "the message has not returned"
	}
	var changed []string
	for _, name := range slices.Sorted(maps.Keys(typed())) {
		was := typed()[name]
		is, kept := back[0].Headers[name]
		if t, ok := is.(time.Time); ok {
			is = t.UTC()
		}
		if !kept {
			changed = append(changed, name+" is gone")
		} else if !reflect.DeepEqual(was, is) {
			changed = append(changed, fmt.Sprintf("%s: %T became %T", name, was, is))
		}
	}
	if len(changed) > 0 {
		return Differs, strings.Join(changed, "; ")
	}
	return OK, fmt.Sprintf("all %d are as they were", len(typed()))
}

// priorities looks whether a message waits for a later message of a higher priority. The two times
// of arrival are compared with each other, so that a slow broker changes nothing.
func priorities(b *bench) (Status, string) {
	const delay, apart = 2 * time.Second, 1500 * time.Millisecond
	queue, wait := b.pair(topology.Quorum, "priorities", delay)
	for again := true; ; again = false {
		b.enter("", wait, amqp.Publishing{Priority: 0})
		b.pause(apart)
		b.enter("", wait, amqp.Publishing{Priority: 4})
		back := b.take(queue, 2, delay+arrival)
		if len(back) < 2 {
			return Differs, fmt.Sprintf("%d of 2 messages returned", len(back))
		}
		gap := back[1].at.Sub(back[0].at)
		seen := fmt.Sprintf("the first returned %d ms before the second", gap.Milliseconds())
		if back[0].Priority != 0 {
			seen = "the second message returned first"
		} else if gap > apart/2 {
			return OK, seen
		}
		if !again {
			return Differs, seen
		}
	}
}

// returned publishes messages that no queue takes, and looks whether each return is there when its
// confirm is.
func returned(b *bench) (Status, string) {
	missing := b.prefix + "missing"
	before, refused := 0, 0
	for i := range manyMessages {
		confirm, err := b.ch.PublishWithDeferredConfirmWithContext(b.ctx, "", missing, true, false,
			amqp.Publishing{MessageId: fmt.Sprint(i)})
		b.must(err)
		acked, err := confirm.WaitContext(b.ctx)
		b.must(err)
		if !acked {
			refused++
		}
		if b.ch.IsClosed() {
			b.must(ending(<-b.closed))
		}
		select {
		case r := <-b.returns:
			if r.MessageId == fmt.Sprint(i) {
				before++
			}
		default:
		}
	}
	if refused == manyMessages {
		return OK, fmt.Sprintf("all %d were refused", refused)
	}
	return okIf(before == manyMessages,
		"%d of %d were returned before their confirm", before, manyMessages)
}

// deliveries is more often than the limit of RabbitMQ 4 allows by default (F2).
const deliveries = 30

func deliveryLimit(b *bench) (Status, string) {
	queue := b.kept(topology.Quorum, "limit")
	b.enter("", queue, amqp.Publishing{})
	for i := range deliveries {
		got := b.until(arrival, func() bool {
			d, ok, err := b.ch.Get(queue, false)
			b.must(err)
			if ok {
				b.must(d.Reject(true))
			}
			return ok
		})
		if !got {
			return Differs, fmt.Sprintf("it was gone after it was given back %d times", i)
		}
	}
	return OK, fmt.Sprintf("it was still there after it was given back %d times", deliveries)
}
