package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/topology"
)

// producer publishes numbered messages at a steady rate.
type producer struct {
	channel *amqp.Channel
	queue   string
	quit    chan struct{}
	ended   chan struct{}

	mu        sync.Mutex
	published []time.Time // by number
	confirms  []*amqp.DeferredConfirmation
	err       error
}

// startProducer begins to publish. The channel must be in confirm mode, and is its own.
func startProducer(channel *amqp.Channel, queue string, rate int) *producer {
	p := &producer{
		channel: channel, queue: queue, quit: make(chan struct{}), ended: make(chan struct{}),
	}
	go p.run(rate)
	return p
}

func (p *producer) run(rate int) {
	defer close(p.ended)
	begun := time.Now()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for n := 0; ; {
		select {
		case <-p.quit:
			return
		case <-ticker.C:
		}
		// A late tick catches up.
		for due := int(time.Since(begun).Seconds() * float64(rate)); n < due; n++ {
			if err := p.publish(n); err != nil {
				p.mu.Lock()
				p.err = fmt.Errorf("publish message %d: %w", n, err)
				p.mu.Unlock()
				return
			}
		}
	}
}

func (p *producer) publish(n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := strconv.Itoa(n)
	confirm, err := p.channel.PublishWithDeferredConfirm("", p.queue, true, false, amqp.Publishing{
		MessageId: text, DeliveryMode: amqp.Persistent, Body: []byte(text),
	})
	if err != nil {
		return err
	}
	p.published, p.confirms = append(p.published, time.Now()), append(p.confirms, confirm)
	return nil
}

// count returns the number of published messages.
func (p *producer) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.published)
}

// stop ends the producer and returns when the broker has confirmed all messages.
func (p *producer) stop(ctx context.Context) (published []time.Time, err error) {
	close(p.quit)
	<-p.ended
	if p.err != nil {
		return nil, p.err
	}
	for n, confirm := range p.confirms {
		ok, err := confirm.WaitContext(ctx)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("the broker refused message %d of the producer", n)
		}
	}
	return p.published, nil
}

// own runs f with a producer on a connection that nothing else uses. f stops the producer.
func (b *broker) own(f func(*producer) error, queue string, rate int) error {
	conn, err := amqp.Dial(b.node.URL())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return err
	}
	return f(startProducer(ch, queue, rate))
}

// tally are counters of the node since its start.
type tally struct {
	at time.Time
	// received counts the publishes of all clients.
	received int
	// moved counts the messages that the node itself wrote to another queue, because their wait was
	// over for example.
	moved int
	acked int
}

// countersOf reads the counters inside the node, which are exact and cost the clients nothing.
const countersOf = `
	All = maps:values(rabbit_global_counters:overview()),
	Sum = fun(Names) -> lists:sum([maps:get(N, M, 0) || M <- All, N <- Names]) end,
	lists:flatten(io_lib:format("~b ~b ~b ~b", [
		erlang:system_time(microsecond), Sum([messages_received_total]),
		Sum([messages_dead_lettered_expired_total, messages_dead_lettered_rejected_total,
			messages_dead_lettered_maxlen_total, messages_dead_lettered_delivery_limit_total]),
		Sum([messages_acknowledged_total])])).`

func (b *broker) tally(ctx context.Context) (t tally, err error) {
	out, err := b.node.RunCtl(ctx, "eval", countersOf)
	if err != nil {
		return t, err
	}
	var at int64
	text := strings.Trim(strings.TrimSpace(out), `"`)
	if _, err := fmt.Sscan(text, &at, &t.received, &t.moved, &t.acked); err != nil {
		return t, fmt.Errorf("the counters of the node are %q: %w", out, err)
	}
	t.at = time.UnixMicro(at)
	return t, nil
}

// left are the messages that are still on the broker.
type left struct {
	waiting, dead map[int]bool
	copies        int // more than one of a message
	tokens        int // of brakes that are still stopped
}

// quiet is how long no message must come before the queues count as empty.
const quiet = 2 * time.Second

// collect takes all messages out of the queues of a plan and deletes them.
func (b *broker) collect(plan topology.Plan) (found left, err error) {
	found = left{waiting: map[int]bool{}, dead: map[int]bool{}}
	queues, keeps := []string{plan.Queue}, map[string]bool{}
	for _, q := range plan.Queues {
		queues = append(queues, q.Name)
		keeps[q.Name] = q.Delay == 0
	}
	err = b.do(func(ch *amqp.Channel) error {
		deliveries := make(chan amqp.Delivery)
		done := make(chan struct{})
		var feeders sync.WaitGroup
		defer func() {
			close(done)
			_ = ch.Close()
			feeders.Wait()
		}()
		for _, queue := range queues {
			from, err := ch.Consume(queue, queue, true, true, false, false, nil)
			if err != nil {
				return fmt.Errorf("look into queue %q: %w", queue, err)
			}
			feeders.Go(func() {
				for d := range from {
					select {
					case deliveries <- d:
					case <-done:
						return
					}
				}
			})
		}
		for {
			select {
			case d := <-deliveries:
				if err := found.add(d, keeps[d.ConsumerTag]); err != nil {
					return err
				}
			case <-time.After(quiet):
				return nil
			}
		}
	})
	if err != nil {
		return found, err
	}
	return found, b.delete(queues...)
}

// tokens returns the number of tokens of a brake: one while it is stopped.
func (b *broker) tokens(name string) (tokens int, err error) {
	err = b.do(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive("millpond.brake."+name, true, false, false, false, nil)
		tokens = q.Messages
		return err
	})
	return tokens, err
}

func (l *left) add(d amqp.Delivery, dead bool) error {
	n, err := strconv.Atoi(string(d.Body))
	if err != nil {
		return errors.Join(errors.New("a message of another producer"), err)
	}
	if l.waiting[n] || l.dead[n] {
		l.copies++
	}
	if dead {
		l.dead[n] = true
	} else {
		l.waiting[n] = true
	}
	return nil
}
