package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/topology"
)

// plain is a connection that does not use the library, so that the library's faults show.
type plain struct {
	conn    *amqp.Connection
	ch      *amqp.Channel
	returns chan amqp.Return
}

func dialPlain(url string) (*plain, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, err
	}
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &plain{conn: conn, ch: ch, returns: ch.NotifyReturn(make(chan amqp.Return, 1))}, nil
}

// server returns the broker's name and version.
func (p *plain) server() string {
	return fmt.Sprintf("%v %v", p.conn.Properties["product"], p.conn.Properties["version"])
}

// publish returns nil when the broker has confirmed that the queue has it.
func (p *plain) publish(ctx context.Context, queue, id string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	confirm, err := p.ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false,
		amqp.Publishing{
			DeliveryMode: amqp.Persistent, MessageId: id, ContentType: "application/json", Body: body,
		})
	if err != nil {
		return fmt.Errorf("publish %s: %w", id, err)
	}
	confirmed, err := confirm.WaitContext(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("publish %s: %w", id, err)
	case !confirmed:
		return fmt.Errorf("publish %s: not confirmed", id)
	}
	select {
	case r := <-p.returns:
		return fmt.Errorf("publish %s: returned: %s", id, r.ReplyText)
	default:
		return nil
	}
}

// consume calls found for each message of a queue until the connection is closed. It acks none, so
// the messages stay in their queue.
func (p *plain) consume(queue string, found func(amqp.Delivery)) error {
	ch, err := p.conn.Channel()
	if err != nil {
		return err
	}
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("consume %s: %w", queue, err)
	}
	go func() {
		for d := range deliveries {
			found(d)
		}
	}()
	return nil
}

// look calls found for each message that is in a queue now, and leaves it there. A missing queue
// holds none.
func (p *plain) look(queue string, found func(amqp.Delivery)) error {
	ch, err := p.conn.Channel()
	if err != nil {
		return err
	}
	for {
		d, ok, err := ch.Get(queue, false)
		var refused *amqp.Error
		switch {
		case errors.As(err, &refused) && refused.Code == amqp.NotFound:
			return nil
		case errors.As(err, &refused) && refused.Code == amqp.ResourceLocked:
			return p.consumeAll(queue, found)
		case err != nil:
			return fmt.Errorf("look into %s: %w", queue, err)
		case !ok:
			return ch.Close() // which gives the messages back
		}
		found(d)
	}
}

// consumeAll is look for a queue with a single active consumer, which refuses basic.get. Its
// tokens are no messages.
func (p *plain) consumeAll(queue string, found func(amqp.Delivery)) error {
	ch, err := p.conn.Channel()
	if err != nil {
		return err
	}
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("look into %s: %w", queue, err)
	}
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("look into %s: %w", queue, err)
	}
	for range q.Messages {
		d := <-deliveries
		if note, _ := d.Headers["millpond-line"].(string); !strings.HasPrefix(note, "token") {
			found(d)
		}
	}
	return ch.Close() // which gives the messages back
}

// delete removes the queue and the rest of its plan.
func (p *plain) delete(plan topology.Plan) error {
	for _, queue := range append(waiting(plan), plan.Dead.RoutingKey) {
		if _, err := p.ch.QueueDelete(queue, false, false, false); err != nil {
			return fmt.Errorf("delete %s: %w", queue, err)
		}
	}
	for _, exchange := range plan.Exchanges {
		if err := p.ch.ExchangeDelete(exchange.Name, false, false); err != nil {
			return fmt.Errorf("delete %s: %w", exchange.Name, err)
		}
	}
	return nil
}

// waiting returns the queue and the queues of its plan without the dead-letter queue.
func waiting(plan topology.Plan) []string {
	queues := []string{plan.Queue}
	for _, queue := range plan.Queues {
		if queue.Name != plan.Dead.RoutingKey {
			queues = append(queues, queue.Name)
		}
	}
	return queues
}
