package doctor

import (
	"context"
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

// waiting is a wait queue for messages of a queue, as a strategy declares it.
func waiting(
	kind topology.QueueType, queue string, delay time.Duration, extra amqp.Table,
) (topology.Queue, error) {
	plan, err := topology.PerQueue{Type: kind, WaitArguments: extra}.Plan(
		queue, []time.Duration{delay})
	for _, q := range plan.Queues {
		if q.Delay == delay {
			return q, err
		}
	}
	return topology.Queue{}, err
}

// keeping is a queue that keeps messages, as a strategy declares its dead-letter queue.
func keeping(kind topology.QueueType, queue string) (topology.Queue, error) {
	plan, err := topology.PerQueue{Type: kind}.Plan(queue, nil)
	if err != nil {
		return topology.Queue{}, err
	}
	q := plan.Queues[len(plan.Queues)-1]
	q.Name = queue
	return q, nil
}

// pair declares a queue and a wait queue before it.
func (b *bench) pair(
	ctx context.Context, kind topology.QueueType, name string, delay time.Duration,
) (queue, wait string, err error) {
	target, err := keeping(kind, b.prefix+name)
	if err != nil {
		return "", "", err
	}
	q, err := waiting(kind, target.Name, delay, nil)
	if err != nil {
		return "", "", err
	}
	if err := b.declare(ctx, target); err != nil {
		return "", "", err
	}
	return target.Name, q.Name, b.declare(ctx, q)
}

// waits sends three messages through a wait queue, one after the other. A single early message is a
// difference. A single late message may be a pause of a busy machine.
func waits(kind topology.QueueType) func(context.Context, *bench) (Status, string, error) {
	return func(ctx context.Context, b *bench) (Status, string, error) {
		queue, wait, err := b.pair(ctx, kind, string(kind), waitTime)
		if err != nil {
			return "", "", err
		}
		var times []time.Duration
		for range 3 {
			began := time.Now()
			if ok, err := b.put(ctx, "", wait, amqp.Publishing{}); err != nil || !ok {
				return Differs, "the wait queue has refused the message", err
			}
			back, err := b.take(ctx, queue, 1, arrival)
			if err != nil {
				return "", "", err
			}
			if len(back) == 0 {
				return Differs, fmt.Sprintf("a message has not returned within %v", arrival), nil
			}
			times = append(times, back[0].at.Sub(began))
		}
		earliest, latest := slices.Min(times), slices.Max(times)
		seen := fmt.Sprintf("3 messages returned after %d to %d ms",
			earliest.Milliseconds(), latest.Milliseconds())
		if earliest < waitTime || earliest > waitTime+late {
			return Differs, seen, nil
		}
		return OK, seen, nil
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

func headerTypes(ctx context.Context, b *bench) (Status, string, error) {
	queue, wait, err := b.pair(ctx, topology.Quorum, "headers", 200*time.Millisecond)
	if err != nil {
		return "", "", err
	}
	if ok, err := b.put(ctx, "", wait, amqp.Publishing{Headers: typed()}); err != nil || !ok {
		return Differs, "the wait queue has refused the message", err
	}
	back, err := b.take(ctx, queue, 1, arrival)
	if err != nil || len(back) == 0 {
		return Unknown, "the message has not returned", err
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
		return Differs, strings.Join(changed, "; "), nil
	}
	return OK, fmt.Sprintf("all %d are as they were", len(typed())), nil
}

// priorities looks whether a message waits for a later message of a higher priority. The two times
// of arrival are compared with each other, so that a slow broker changes nothing.
func priorities(ctx context.Context, b *bench) (Status, string, error) {
	const delay, apart = 2 * time.Second, 1500 * time.Millisecond
	queue, wait, err := b.pair(ctx, topology.Quorum, "priorities", delay)
	if err != nil {
		return "", "", err
	}
	for again := true; ; again = false {
		for i, priority := range []uint8{0, 4} {
			if i > 0 {
				if err := pause(ctx, apart); err != nil {
					return "", "", err
				}
			}
			ok, err := b.put(ctx, "", wait, amqp.Publishing{Priority: priority})
			if err != nil || !ok {
				return Differs, "the wait queue has refused a message", err
			}
		}
		back, err := b.take(ctx, queue, 2, delay+arrival)
		if err != nil || len(back) < 2 {
			return Differs, fmt.Sprintf("%d of 2 messages returned", len(back)), err
		}
		gap := back[1].at.Sub(back[0].at)
		seen := fmt.Sprintf("the first returned %d ms before the second", gap.Milliseconds())
		if back[0].Priority != 0 {
			seen = "the second message returned first"
		} else if gap > apart/2 {
			return OK, seen, nil
		}
		if !again {
			return Differs, seen, nil
		}
	}
}

// returned publishes messages that no queue takes, and looks whether each return is there when its
// confirm is.
func returned(ctx context.Context, b *bench) (Status, string, error) {
	missing := b.prefix + "missing"
	before, refused := 0, 0
	for i := range manyMessages {
		confirm, err := b.ch.PublishWithDeferredConfirmWithContext(ctx, "", missing, true, false,
			amqp.Publishing{MessageId: fmt.Sprint(i)})
		if err != nil {
			return "", "", err
		}
		acked, err := confirm.WaitContext(ctx)
		if err != nil {
			return "", "", err
		}
		if !acked {
			refused++
		}
		if b.ch.IsClosed() {
			return "", "", ending(<-b.closed)
		}
		select {
		case r := <-b.returns:
			if r.MessageId == fmt.Sprint(i) {
				before++
			}
		default:
		}
	}
	seen := fmt.Sprintf("%d of %d were returned before their confirm", before, manyMessages)
	switch manyMessages {
	case refused:
		return OK, fmt.Sprintf("all %d were refused", refused), nil
	case before:
		return OK, seen, nil
	}
	return Differs, seen, nil
}

// deliveries is more often than the limit of RabbitMQ 4 allows by default (F2).
const deliveries = 30

func deliveryLimit(ctx context.Context, b *bench) (Status, string, error) {
	q, err := keeping(topology.Quorum, b.prefix+"limit")
	if err == nil {
		err = b.declare(ctx, q)
	}
	if err != nil {
		return "", "", err
	}
	if ok, err := b.put(ctx, "", q.Name, amqp.Publishing{}); err != nil || !ok {
		return Differs, "the queue has refused the message", err
	}
	for i := range deliveries {
		got := false
		err := until(ctx, arrival, func() (bool, error) {
			d, ok, err := b.ch.Get(q.Name, false)
			if err != nil || !ok {
				return false, err
			}
			got = true
			return true, d.Reject(true)
		})
		if err != nil {
			return "", "", err
		}
		if !got {
			return Differs, fmt.Sprintf("it was gone after it was given back %d times", i), nil
		}
	}
	return OK, fmt.Sprintf("it was still there after it was given back %d times", deliveries), nil
}
