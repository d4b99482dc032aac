package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/internal/testing/chaos"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// depths returns the number of messages of each queue, held ones included, after two equal looks.
// The figures of rabbitmqctl are as old as a tick, see quickNode.
func depths(ctx context.Context, node *testbroker.Node) (map[string]int, error) {
	var before string
	for {
		out, err := node.RunCtl(ctx, "list_queues", "--no-table-headers", "name", "messages")
		if err != nil {
			return nil, err
		}
		if out == before {
			return parseDepths(out)
		}
		before = out
		if !rest(ctx, 2*time.Second) {
			return nil, ctx.Err()
		}
	}
}

func parseDepths(out string) (map[string]int, error) {
	found := map[string]int{}
	for line := range strings.Lines(out) {
		name, count, _ := strings.Cut(strings.TrimSpace(line), "\t")
		n, err := strconv.Atoi(count)
		if err != nil {
			return nil, fmt.Errorf("list_queues: %q: %w", line, err)
		}
		found[name] = n
	}
	return found, nil
}

// contents returns the messages of a queue without a consumer, and leaves them there. It consumes,
// because a queue with a single active consumer refuses basic.get.
func contents(
	ctx context.Context, url, name string, depth int,
) (messages []amqp.Delivery, err error) {
	if depth == 0 {
		return nil, nil
	}
	ch, hangUp, err := chaos.Dial(url)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	deliveries, err := ch.ConsumeWithContext(ctx, name, "", false, false, false, false, amqp.Table{})
	if err != nil {
		return nil, err
	}
	for len(messages) < depth {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return messages, errors.New("the broker ended the consumer")
			}
			messages = append(messages, d)
		case <-time.After(10 * time.Second):
			return messages, fmt.Errorf("the broker counts %d messages and delivers %d", depth,
				len(messages))
		}
	}
	return messages, nil
}

// isMark reports whether a message of the line is the mark of a dead letter that blocks its key.
func isMark(d amqp.Delivery) bool {
	note, _ := d.Headers[keys.Line].(string)
	return order.ParseNote(note).Kind == order.Block
}

// declare declares the queue, so that the producer can begin before the first instance.
func declare(url, queue string) error {
	ch, hangUp, err := chaos.Dial(url)
	if err != nil {
		return err
	}
	defer hangUp()
	_, err = ch.QueueDeclare(queue, true, false, false, false, arguments())
	return err
}
