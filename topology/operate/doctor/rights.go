package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/topology"
)

// scratchRights uses each right once.
func scratchRights(b *bench) (Status, string) {
	queue := b.prefix + "rights"
	var refused rights
	err := b.tryDeclare(topology.Queue{Name: queue})
	b.must(refused.note(right("configure", queue), err))
	_, err = b.put("", queue, amqp.Publishing{})
	b.must(refused.note(right("write", "amq.default"), err))
	err = b.conn.Do(b.ctx, func(ch *amqp.Channel) error {
		_, _, err := ch.Get(queue, true)
		return err
	})
	if audit.IsCode(err, amqp.NotFound) { // it could not be configured
		err = nil
	}
	b.must(refused.note(right("read", queue), err))
	return refused.result("configure, write and read")
}

// rights are the rights that the broker has refused, each with its name.
type rights []string

// note keeps a refusal and returns any other error.
func (r *rights) note(right string, err error) error {
	if !audit.IsCode(err, amqp.AccessRefused) {
		return err
	}
	*r = append(*r, right)
	return nil
}

func right(verb, name string) string { return fmt.Sprintf("%s %q", verb, name) }

func (r *rights) result(all string) (Status, string) {
	if len(*r) == 0 {
		return OK, all
	}
	return Differs, "the user may not " + several(*r, ", ")
}

// several joins at most five texts.
func several(texts []string, between string) string {
	const most = 5
	if len(texts) <= most {
		return strings.Join(texts, between)
	}
	return strings.Join(texts[:most], between) + fmt.Sprintf("%sand %d more", between, len(texts)-most)
}

// planRights asks for each right that a plan needs, as Plan.Permissions has them, with requests
// that the broker refuses for another reason once the right is there. They declare, consume and
// publish nothing (F31). Other brokers than RabbitMQ are not asked, because they might fulfil them.
func planRights(plan topology.Plan, product string) experiment {
	return func(b *bench) (Status, string) {
		if product != rabbitMQ {
			return Unknown, fmt.Sprintf("not asked: %s may not refuse the questions", product)
		}
		a := asker{b: b, asked: map[string]bool{}}
		a.read(plan.Queue)
		for _, r := range append(slices.Clone(plan.WaitSteps), plan.Dead) {
			a.write(r.Exchange)
		}
		if !b.provisioned {
			a.declares(plan)
		}
		return a.refused.result(fmt.Sprintf("all of %d rights", len(a.asked)))
	}
}

// asker asks for rights, each once.
type asker struct {
	b       *bench
	asked   map[string]bool
	refused rights
}

func (a *asker) ask(right string, question func(ch *amqp.Channel) error) {
	if a.asked[right] {
		return
	}
	a.asked[right] = true
	err := a.b.conn.Do(a.b.ctx, question)
	if audit.IsCode(err, amqp.PreconditionFailed) || audit.IsCode(err, amqp.NotFound) {
		return // the right is there
	}
	a.b.must(a.refused.note(right, err))
}

func (a *asker) declares(plan topology.Plan) {
	a.configure(plan.Queue)
	for _, q := range plan.Queues {
		a.configure(q.Name)
		if exchange, ok := q.Arguments["x-dead-letter-exchange"].(string); ok {
			a.read(q.Name)
			a.write(exchange)
		}
	}
	for _, e := range plan.Exchanges {
		a.ask(right("configure", e.Name), func(ch *amqp.Channel) error {
			// The argument must be a text.
			return ch.ExchangeDeclare(e.Name, e.Kind, true, e.AutoDelete, false, false,
				amqp.Table{"alternate-exchange": int32(1)})
		})
		if alternate, ok := e.Arguments["alternate-exchange"].(string); ok {
			a.write(alternate)
		}
	}
	for _, bound := range plan.Bindings {
		key := a.b.prefix + "none" // such a binding does not exist
		to := bound.Queue + bound.ToExchange
		a.ask(fmt.Sprintf("bind %q to %q", to, bound.Exchange), func(ch *amqp.Channel) error {
			if bound.ToExchange != "" {
				return ch.ExchangeUnbind(bound.ToExchange, key, bound.Exchange, false, nil)
			}
			return ch.QueueUnbind(bound.Queue, key, bound.Exchange, nil)
		})
	}
}

// configure declares a queue of a type that does not exist.
func (a *asker) configure(queue string) {
	a.ask(right("configure", queue), func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false,
			amqp.Table{"x-queue-type": "millpond-doctor"})
		return err
	})
}

// read consumes with two arguments of which each type of queue refuses one.
func (a *asker) read(queue string) {
	a.ask(right("read", queue), func(ch *amqp.Channel) error {
		if err := ch.Qos(1, 0, false); err != nil {
			return err
		}
		_, err := ch.Consume(queue, "", false, false, false, false,
			amqp.Table{"x-stream-offset": "next", "x-priority": int32(0)})
		return err
	})
}

// write publishes a message with an expiration that is no number (F7).
func (a *asker) write(exchange string) {
	name := exchange
	if name == "" {
		name = "amq.default"
	}
	a.ask(right("write", name), func(ch *amqp.Channel) error {
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		if err := ch.Confirm(false); err != nil {
			return err
		}
		confirm, err := ch.PublishWithDeferredConfirmWithContext(a.b.ctx, exchange,
			a.b.prefix+"none", true, false, amqp.Publishing{Expiration: "never"})
		if err != nil {
			return err
		}
		acked, err := confirm.WaitContext(a.b.ctx)
		if err != nil {
			return err
		}
		if acked || !ch.IsClosed() {
			return errors.New("the broker has not refused an expiration that is no number")
		}
		return ending(<-closed)
	})
}
