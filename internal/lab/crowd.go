package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// crowd are quorum queues of other services on the same cluster, with a message in each. After a
// fault the nodes have an election and a recovery for each of them, so the queues of the run come
// late.
type crowd struct {
	urls []string
	size int
}

const (
	crowdName = "crowd."
	// crowding is the number of connections that work on the crowd at once.
	crowding = 6
)

// declare declares all queues, and publishes a confirmed message to each.
func (c crowd) declare(ctx context.Context) error {
	return c.each(ctx, func(ch *amqp.Channel, queue string) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false,
			amqp.Table{"x-queue-type": "quorum"})
		if err != nil {
			return err
		}
		return publishOne(ch, nil, queue, amqp.Publishing{Body: []byte(queue)})
	})
}

// missing returns the queues that do not have their message.
func (c crowd) missing(ctx context.Context) (queues []string, err error) {
	var mu sync.Mutex
	err = c.each(ctx, func(ch *amqp.Channel, queue string) error {
		d, ok, err := ch.Get(queue, true)
		if err != nil {
			return err
		}
		if !ok || string(d.Body) != queue {
			mu.Lock()
			defer mu.Unlock()
			queues = append(queues, queue)
		}
		return nil
	})
	return queues, err
}

// each calls do for every queue, on several connections.
func (c crowd) each(ctx context.Context, do func(*amqp.Channel, string) error) error {
	errs := make([]error, crowding)
	var wg sync.WaitGroup
	for worker := range min(crowding, c.size) {
		wg.Go(func() {
			ch, hangUp, err := dial(c.urls[worker%len(c.urls)])
			if err != nil {
				errs[worker] = err
				return
			}
			defer hangUp()
			for i := worker; i < c.size && errs[worker] == nil; i += crowding {
				errs[worker] = errors.Join(ctx.Err(), do(ch, fmt.Sprintf("%s%04d", crowdName, i+1)))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
