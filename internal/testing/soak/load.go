package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
)

// delays before the second and the third attempt.
var delays = backoff.List{200 * time.Millisecond, 500 * time.Millisecond}

// failures returns the number of failures of message n. A fifth of all fail, half of these twice.
func failures(n int) int {
	switch n % 10 {
	case 3:
		return 1
	case 7:
		return 2
	}
	return 0
}

// load has the messages, their publishers and their handler.
type load struct {
	queue string

	next    atomic.Int64
	handled atomic.Int64
	sent    atomic.Int64

	mu       sync.Mutex
	due      map[int]time.Time // of the messages that wait
	lateness []time.Duration
}

var errFailed = errors.New("this attempt fails")

func (l *load) handle(msg *message.Message) error {
	n, err := strconv.Atoi(string(msg.Payload))
	if err != nil {
		return middleware.Permanent(err)
	}
	attempt := middleware.Attempt(msg.Context())
	l.mu.Lock()
	defer l.mu.Unlock()
	if due, waited := l.due[n]; waited {
		l.lateness = append(l.lateness, time.Since(due))
		delete(l.due, n)
	}
	if attempt <= failures(n) {
		l.due[n] = time.Now().Add(delays[attempt-1])
		return errFailed
	}
	l.handled.Add(1)
	return nil
}

func (l *load) handledCount() int { return int(l.handled.Load()) }

// takeLateness returns the lateness of the messages that came back since the last call.
func (l *load) takeLateness() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.lateness
	l.lateness = make([]time.Duration, 0, cap(taken))
	return taken
}

// publishing is the number of messages that are published at once.
const publishing = 16

// publish publishes rate messages a second, each confirmed, until ctx is done.
func (l *load) publish(ctx context.Context, url string, rate int) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	errs := make([]error, publishing)
	var wg sync.WaitGroup
	for i := range publishing {
		ch, err := conn.Channel()
		if err == nil {
			err = ch.Confirm(false)
		}
		if err != nil {
			return errors.Join(err, conn.Close())
		}
		wg.Go(func() { errs[i] = l.produce(ctx, ch, rate) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (l *load) produce(ctx context.Context, ch *amqp.Channel, rate int) error {
	ticker := time.NewTicker(time.Second * publishing / time.Duration(rate))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		n := int(l.next.Add(1))
		confirm, err := ch.PublishWithDeferredConfirm("", l.queue, true, false,
			amqp.Publishing{Body: []byte(strconv.Itoa(n)), DeliveryMode: amqp.Persistent})
		if err != nil {
			return err
		}
		if !confirm.Wait() {
			return fmt.Errorf("message %d was not confirmed", n)
		}
		l.sent.Add(1)
	}
}
