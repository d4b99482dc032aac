package topology

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ErrNotConfirmed is returned by Purge where the second name is not the first.
var ErrNotConfirmed = errors.New("not confirmed")

// Purge deletes the messages of one queue and returns how many they were. They
// are gone: nothing is dead-lettered, nothing is delivered, and what waits in a
// wait queue never comes back (F10). It is no way to drain a queue.
//
// confirm must be the exact name of the queue once more, else the error is
// ErrNotConfirmed and nothing has happened. Messages that a consumer holds
// unacked stay. Any queue of the vhost can be named; the user needs the read
// permission for it.
func (c *Client) Purge(ctx context.Context, queue, confirm string) (int, error) {
	if queue == "" || queue != confirm {
		return 0, fmt.Errorf("purge queue %q: %w: the confirmation names %q", queue, ErrNotConfirmed, confirm)
	}
	ctx, cancel := context.WithTimeout(ctx, declareTimeout)
	defer cancel()
	conn, end, err := c.operate(ctx)
	if err != nil {
		return 0, fmt.Errorf("purge queue %q: %w", queue, err)
	}
	defer end()
	purged := make(chan int, 1)
	err = conn.Do(ctx, func(ch *amqp.Channel) error {
		n, err := ch.QueuePurge(queue, false)
		purged <- n
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("purge queue %q: %w", queue, err)
	}
	return <-purged, nil
}
