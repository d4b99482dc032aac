// Command webhooks delivers webhooks over HTTP with delayed retries, and proves that none is lost.
//
// A receiver, which is a net/http server in the same program, answers by a plan made from a seed.
// It answers 200, 500, 503 for a while, 429 with Retry-After, 400 and 410; it drops connections,
// and sometimes it does not answer at all. The service that delivers to it has a policy for each
// kind of error: the network's, the receiver's, and errors that do not pass. A plain AMQP
// connection, which shares no code with the library, publishes the deliveries and reads the
// dead-letter queue.
//
// The table at the end comes from the receiver's log and from the dead-letter queue. The program
// exits with 1 unless every delivery is in exactly one of the two, after the planned attempts and
// never before its delay.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/examples/internal/program"
	"github.com/millpond-go/millpond/examples/internal/webhook"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

const maxDeliveries = 1000

const usage = `Usage: webhooks [--url URL] [--strategy perqueue|shared] [--type quorum|classic]
                [--deliveries N] [--seed N] [--quiet] [--log]

Delivers webhooks to a receiver that fails in many ways, and counts at the end
where each of them is: delivered, or in the dead-letter queue. Takes about 25
seconds. Its queues have names of their own and are deleted at the end, unless
something is wrong.

Exit status: 0 if nothing was lost, left undecided or early, 1 if something was,
2 for a wrong argument.

`

func main() { program.Exit(run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	d, err := parse(args, stdout, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	if err := d.run(ctx); err != nil {
		fmt.Fprintf(stderr, "webhooks: %v\n", err)
		return 1
	}
	return 0
}

// parse reads the arguments. It prints its error.
func parse(args []string, stdout, stderr io.Writer) (*demo, error) {
	flags := flag.NewFlagSet("webhooks", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	// The default is not shown, because AMQP_URL may hold a password.
	url := flags.String("url", "",
		"`URL` of the broker (default AMQP_URL, else "+program.DefaultURL+")")
	strategy := flags.String("strategy", "perqueue", "`where` messages wait: perqueue or shared")
	kind := flags.String("type", "quorum", "`type` of the wait queues: quorum or classic")
	deliveries := flags.Int("deliveries", 200, "`number` of deliveries")
	seed := flags.Uint64("seed", 1, "`seed` of the receiver's plan")
	quiet := flags.Bool("quiet", false, "do not print a line for each attempt")
	log := flags.Bool("log", false, "show the log of the library and of Watermill on stderr")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	d := &demo{
		url: program.URL(*url), kind: topology.QueueType(*kind), strategy: *strategy, seed: *seed,
		quiet: *quiet,
		plan:  deal(min(max(*deliveries, 0), maxDeliveries), *seed), logger: watermill.NopLogger{},
		out: stdout,
	}
	if *log {
		d.logger = watermill.NewStdLoggerWithOut(stderr, false, false)
	}

	var err error
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case *strategy != "perqueue" && *strategy != "shared":
		err = fmt.Errorf("unknown strategy %q: perqueue or shared", *strategy)
	case d.kind != topology.Quorum && d.kind != topology.Classic:
		err = fmt.Errorf("unknown type %q: quorum or classic", *kind)
	case *deliveries < 1 || *deliveries > maxDeliveries:
		err = fmt.Errorf("%d deliveries: from 1 to %d", *deliveries, maxDeliveries)
	}
	if err != nil {
		fmt.Fprintf(stderr, "webhooks: %v\n", err)
	}
	return d, err
}

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
	mu       sync.Mutex // of out
	out      io.Writer
}

func (d *demo) run(ctx context.Context) (err error) {
	queue := "millpond-webhooks-" + strings.ToLower(rand.Text()[:8])
	var strategy topology.Strategy = topology.PerQueue{Type: d.kind}
	if d.strategy == "shared" {
		// shared by no other program, so that it can be deleted
		strategy = topology.Shared{Type: d.kind, Prefix: queue}
	}
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
	d.print("queue %s on %s\n", queue, p.server())
	d.print("strategy %s, %s wait queues\n", d.strategy, d.kind)
	d.print("policy %v, for the network %v\n", webhook.Policy, webhook.NetworkPolicy)
	d.print("%d deliveries, seed %d, %d in progress at once\n\n", len(d.plan), d.seed, lanes)

	driven := d.drive(ctx, p, l, plan, r.url)
	failed := errors.Join(s.Close(), inspect(p, l, plan))
	well := failed == nil && (driven == nil || errors.Is(driven, errInterrupted))
	return errors.Join(driven, failed, d.conclude(p, l, plan, well))
}

func (d *demo) print(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, format, args...)
}

func (d *demo) seen(line string) {
	if !d.quiet {
		d.print("%s", line)
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
	d.print("%v\n", r)
	return failed
}

// lanes is the number of deliveries in progress at once. A slow delivery holds up no other one.
const lanes = 8

// serve consumes the queue with delayed retries. It returns once it does.
func (d *demo) serve(
	ctx context.Context, queue string, strategy topology.Strategy, sender *webhook.Sender,
) (*program.Service, error) {
	cfg := wamqp.NewDurableQueueConfig(d.url)
	client, err := topology.Open(ctx, cfg.Connection, strategy, topology.WithLogger(d.logger))
	if err != nil {
		return nil, err
	}
	retry, err := webhook.NewRetry(client)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	sub, err := client.NewSubscriber(cfg, topology.For(retry),
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
		case err != nil:
			return fmt.Errorf("look into %s: %w", queue, err)
		case !ok:
			return ch.Close() // which gives the messages back
		}
		found(d)
	}
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
