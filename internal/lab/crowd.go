package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

const crowdName = "crowd."

// crowd declares quorum queues of other services. After a fault the nodes have an election and a
// recovery for each of them, so the queues of the run come late.
func (n *nemesis) crowd(ctx context.Context) error {
	const connections = 6
	errs := make([]error, connections)
	var wg sync.WaitGroup
	for worker := range connections {
		wg.Go(func() {
			ch, hangUp, err := dial(n.url(worker))
			if err == nil {
				defer hangUp()
			}
			for i := worker; i < n.Queues && err == nil; i += connections {
				_, err = ch.QueueDeclare(fmt.Sprintf("%s%04d", crowdName, i+1), true, false, false, false,
					amqp.Table{"x-queue-type": "quorum"})
				err = errors.Join(err, ctx.Err())
			}
			errs[worker] = err
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
