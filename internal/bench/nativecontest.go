package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology/native"
)

// nativeRetry and nativeNoFailures are the entries with native.Strategy.
const (
	nativeRetry      = "millpond, Native"
	nativeNoFailures = "millpond, Native, nothing fails"
)

// natively compares a failure that waits in its queue with a failure that waits in a wait queue:
// the rate and the processor time of messages that fail once, and how late they come back.
func (b *bench) natively(ctx context.Context) ([]result, error) {
	if !holdsRejected(b.broker.node.Version()) {
		b.say("  native: left out, RabbitMQ %s ignores the delayed retry of a queue\n",
			b.broker.node.Version())
		return nil, nil
	}
	results, err := scale([]int{1, 8, 64}, func(inFlight int) ([]result, error) {
		return b.nativelyWith(ctx, inFlight)
	})
	if err != nil {
		return nil, err
	}
	late, err := b.lateWith(ctx, "native late", 0, 0, b.rounds, []contender{
		{name: millpond, start: serveMillpond}, {name: nativeRetry, start: serveNative},
	})
	return append(results, late...), err
}

func (b *bench) nativelyWith(ctx context.Context, inFlight int) (results []result, err error) {
	messages := 5000 * min(inFlight, 4)
	c := contest{group: "native", x: float64(inFlight), rounds: b.rounds}
	for _, one := range []struct {
		name  string
		start serveFunc
		fails bool
	}{
		{millpond, serveMillpond, true},
		{nativeRetry, serveNative, true},
		{millpondNoFailures, serveMillpond, false},
		{nativeNoFailures, serveNative, false},
	} {
		var mu sync.Mutex
		failed := make([]bool, messages)
		handle := func(body []byte) error {
			mu.Lock()
			defer mu.Unlock()
			i := number(body)
			if failed[i] = one.fails && !failed[i]; failed[i] {
				return errFailed
			}
			return nil
		}
		l, err := b.newLane(ctx, one.start, work{inFlight: inFlight, delay: time.Second, handle: handle})
		defer func() { err = errors.Join(err, l.end()) }()
		if err != nil {
			return nil, err
		}
		settled := messages
		if one.fails {
			settled *= 2
		}
		c.entries = append(c.entries, entry{one.name, func(ctx context.Context) (values, error) {
			return l.batch(ctx, messages, settled, usual)
		}})
	}
	return c.hold(ctx, b)
}

// serveNative is serveMillpond with a queue that holds its failed messages itself.
func serveNative(ctx context.Context, b *broker, w work) (*service, error) {
	args := amqp.Table{
		"x-queue-type": "quorum", "x-delayed-retry-type": "failed",
		"x-delayed-retry-min": w.delay.Milliseconds(), "x-delayed-retry-max": w.delay.Milliseconds(),
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": w.queue + ".dlq",
	}
	if err := b.declare(w.queue, args); err != nil {
		return nil, err
	}
	return serveQueue(ctx, b, w, args, native.Strategy{Min: w.delay, Max: w.delay},
		backoff.List{w.delay}, watermill.NopLogger{})
}

// holdsRejected reports whether a quorum queue of this version holds rejected messages (F14).
func holdsRejected(version string) bool {
	parts := strings.SplitN(version, ".", 3)
	major, _ := strconv.Atoi(parts[0])
	minor, _ := strconv.Atoi(parts[1])
	return major > 4 || major == 4 && minor >= 3
}
