package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond"
	"github.com/millpond-go/millpond/examples/internal/program"
	"github.com/millpond-go/millpond/examples/internal/webhook"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
	"github.com/millpond-go/millpond/topology/native"
)

var errInterrupted = errors.New("interrupted")

const (
	// pace is the time between two deliveries that are published.
	pace = 60 * time.Millisecond
	// limit is the time after the last of them when the demo gives up. The longest delivery takes
	// about eight seconds.
	limit = 40 * time.Second
)

// demo is one run.
type demo struct {
	url      string
	strategy string
	kind     topology.QueueType
	seed     uint64
	quiet    bool
	plan     []planned
	logger   watermill.LoggerAdapter
	screen   screen
}

// strategies are made for one run. Shared queues and exchanges have the name of the queue as their
// prefix. No other program uses them, so the run may delete them.
var strategies = map[string]func(kind topology.QueueType, queue string) topology.Strategy{
	"perqueue": func(kind topology.QueueType, _ string) topology.Strategy {
		return topology.PerQueue{Type: kind}
	},
	"perattempt": func(kind topology.QueueType, _ string) topology.Strategy {
		return topology.PerAttempt{Type: kind}
	},
	"shared": func(kind topology.QueueType, queue string) topology.Strategy {
		return topology.Shared{Type: kind, Prefix: queue}
	},
	"levels": func(kind topology.QueueType, queue string) topology.Strategy {
		return topology.Levels{Type: kind, Prefix: queue, Max: time.Minute}
	},
	"delayed": func(kind topology.QueueType, queue string) topology.Strategy {
		return topology.DelayedExchange{Type: kind, Prefix: queue}
	},
	"native": func(kind topology.QueueType, _ string) topology.Strategy {
		return native.Strategy{
			Min: nativeMin, Max: nativeMax, Else: topology.PerQueue{Type: kind},
		}
	},
	"inorder": func(kind topology.QueueType, _ string) topology.Strategy {
		return inorder.Strategy{KeyBy: customer, Else: topology.PerQueue{Type: kind}}
	},
}

// customer returns one of 256 customers, who get their webhooks in order.
func customer(msg *message.Message) string { return msg.UUID[len(msg.UUID)-2:] }

// The delays of a queue that holds rejected messages itself: the first two of the policy.
const (
	nativeMin = 500 * time.Millisecond
	nativeMax = time.Second
)

// config is the configuration of the queue.
func (d *demo) config(queue string) wamqp.Config {
	cfg := millpond.QuorumQueue(wamqp.NewDurableQueueConfig(d.url))
	switch d.strategy {
	case "inorder":
		cfg.Queue.Arguments["x-single-active-consumer"] = true
	case "native":
		cfg.Queue.Arguments = amqp.Table{
			"x-queue-type": "quorum", "x-delayed-retry-type": "failed",
			"x-delayed-retry-min":    nativeMin.Milliseconds(),
			"x-delayed-retry-max":    nativeMax.Milliseconds(),
			"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue + ".dlq",
		}
	}
	return cfg
}

func (d *demo) run(ctx context.Context) (err error) {
	queue := "millpond-webhooks-" + strings.ToLower(rand.Text()[:8])
	strategy := strategies[d.strategy](d.kind, queue)
	plan, err := strategy.Plan(queue, slices.Concat(webhook.Policy, webhook.NetworkPolicy,
		webhook.RetryAfters))
	if err != nil {
		return err
	}
	l := newLedger(d.plan)
	r, err := startReceiver(l, d.seen)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	sender := webhook.NewSender(lanes)
	defer sender.Close()
	s, err := d.serve(ctx, queue, strategy, sender)
	if err != nil {
		return err
	}
	p, err := dialPlain(d.url)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	defer p.conn.Close()
	d.screen.print("queue %s on %s\n", queue, p.server())
	if d.strategy == "delayed" {
		d.screen.print("strategy delayed, no wait queues\n")
	} else {
		d.screen.print("strategy %s, %s wait queues\n", d.strategy, d.kind)
	}
	d.screen.print("policy %v, for the network %v\n", webhook.Policy, webhook.NetworkPolicy)
	d.screen.print("%d deliveries, seed %d, %d in progress at once\n\n", len(d.plan), d.seed, lanes)

	stop := d.screen.follow(l.progress)
	driven := d.drive(ctx, p, l, plan, r.url)
	failed := errors.Join(s.Close(), inspect(p, l, plan))
	stop()
	well := failed == nil && (driven == nil || errors.Is(driven, errInterrupted))
	return errors.Join(driven, failed, d.conclude(p, l, plan, well))
}

func (d *demo) seen(line string) {
	if !d.quiet {
		d.screen.print("%s", line)
	}
}

// drive publishes the deliveries and waits until each is decided.
func (d *demo) drive(ctx context.Context, p *plain, l *ledger, plan topology.Plan, url string,
) error {
	err := p.consume(plan.Dead.RoutingKey, func(m amqp.Delivery) {
		l.deadLetter(identify(m), text(m, header.DeadReason), text(m, header.DeadFailures))
	})
	if err != nil {
		return err
	}
	d.seen(fmt.Sprintf(line, "delivery", "attempt", "answer", "asked", "measured"))
	next := time.NewTicker(pace)
	defer next.Stop()
	for _, planned := range d.plan {
		body, err := json.Marshal(webhook.Delivery{
			ID: planned.id, URL: url + planned.id, Event: "order.paid",
		})
		if err != nil {
			return err
		}
		// An interruption waits for the confirm, or the table would not know the message.
		if err := p.publish(context.WithoutCancel(ctx), plan.Queue, planned.id, body); err != nil {
			return err
		}
		l.published(planned.id)
		select {
		case <-ctx.Done():
			return errInterrupted
		case <-next.C:
		}
	}

	giveUp := time.After(limit)
	for !l.decided() {
		select {
		case <-ctx.Done():
			return errInterrupted
		case <-giveUp:
			return fmt.Errorf("not every delivery is decided %v after the last was published", limit)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// identify returns the id of the delivery in a message.
func identify(m amqp.Delivery) string {
	var d webhook.Delivery
	if json.Unmarshal(m.Body, &d) != nil {
		return m.MessageId
	}
	return d.ID
}

func text(m amqp.Delivery, header string) string { return fmt.Sprint(m.Headers[header]) }

// inspect looks a few times for deliveries that are still in the queue or wait, because messages of
// a closed channel come back a moment later.
func inspect(p *plain, l *ledger, plan topology.Plan) error {
	for range 5 {
		time.Sleep(100 * time.Millisecond)
		for _, queue := range waiting(plan) {
			if err := p.look(queue, func(m amqp.Delivery) { l.foundIn(queue, identify(m)) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// conclude prints the table, and deletes the queues unless something is wrong.
func (d *demo) conclude(p *plain, l *ledger, plan topology.Plan, well bool) error {
	var failed error
	for _, fault := range l.faults() {
		failed = errors.Join(failed, errors.New(fault))
	}
	r := l.report()
	if len(r.lost) > 0 {
		failed = errors.Join(failed, fmt.Errorf("lost %d of %d: %s", len(r.lost), r.published,
			strings.Join(r.lost, " ")))
	}
	if well && failed == nil {
		failed = p.delete(plan)
	} else {
		failed = errors.Join(failed, fmt.Errorf("the queues of %s are left as they are", plan.Queue))
	}
	d.seen("\n")
	d.screen.print("%v\n", r)
	return failed
}

// lanes is the number of deliveries in progress at once. A slow delivery holds up no other one.
const lanes = 8

// serve consumes the queue with delayed retries. It returns once it does.
func (d *demo) serve(
	ctx context.Context, queue string, strategy topology.Strategy, sender *webhook.Sender,
) (*program.Service, error) {
	cfg := d.config(queue)
	client, err := topology.Open(ctx, cfg.Connection, strategy, topology.WithLogger(d.logger))
	if err != nil {
		return nil, err
	}
	retry, err := webhook.NewRetry(client)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	sub, err := client.NewSubscriber(cfg, retry,
		topology.ForPolicy(webhook.RetryAfters), topology.WithConcurrency(lanes))
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	router, err := message.NewRouter(message.RouterConfig{}, d.logger)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("webhooks", queue, sub, sender.Deliver)
	s, err := program.Start(ctx, router, client)
	if errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	return s, err
}
