package chaos

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// consumerEnv makes a process of this program a consumer. Its value is the configuration.
const consumerEnv = "MILLPOND_CHAOS_CONSUMER"

// consumer is the configuration of a service in another process.
type consumer struct {
	Name     string
	URLs     []string
	Seed     Fates
	Strategy string
	Bug      Bug
	Log      string // file to which attempts are appended
	Gate     string // file that is locked while a wait queue is being deleted
	// Timeout is the confirm timeout; 0 is confirmTimeout.
	Timeout time.Duration
	Verbose bool
}

const (
	// handlers run beside each other in a consumer, each with concurrency messages at once.
	handlers    = 4
	concurrency = 2
	prefetch    = 20
	// dlqLimit is small enough to be filled.
	dlqLimit       = 150
	confirmTimeout = 5 * time.Second
)

// MaybeConsume runs the whole program if this process was started as a consumer. Call it first.
func MaybeConsume() {
	text, ok := os.LookupEnv(consumerEnv)
	if !ok {
		return
	}
	var c consumer
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.run()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s consumer %s: %v\n", time.Now().Format("15:04:05.000"), c.Name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run consumes until SIGTERM, or until the parent process has ended.
func (c consumer) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	log, err := os.OpenFile(c.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()

	var logger watermill.LoggerAdapter = watermill.NopLogger{}
	if c.Verbose {
		logger = watermill.NewStdLoggerWithOut(os.Stderr, false, false)
	}
	all, err := newLines(c.Strategy, c.Bug)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, logger)
	if err != nil {
		return err
	}
	var closing []func() error
	for _, l := range all {
		var client *topology.Client
		if client, err = c.consume(ctx, l, handlers/len(all), router, logger, log); err != nil {
			break
		}
		closing = append(closing, client.Close)
	}
	if err == nil {
		err = router.Run(ctx)
	}
	for _, end := range closing {
		err = errors.Join(err, end())
	}
	return err
}

// consume adds handlers for a line to the router, on the line's own client.
func (c consumer) consume(
	ctx context.Context, l line, handlers int, router *message.Router,
	logger watermill.LoggerAdapter, log io.Writer,
) (*topology.Client, error) {
	config := wamqp.NewDurableQueueConfig(c.URLs[0])
	config.Queue.Arguments = amqp.Table{"x-queue-type": "quorum"}
	config.Consume.Qos.PrefetchCount = prefetch
	config.Connection.Reconnect = &wamqp.ReconnectConfig{
		BackoffInitialInterval: 200 * time.Millisecond, BackoffMultiplier: 1.5,
		BackoffMaxInterval: 2 * time.Second,
	}
	client, err := topology.Open(ctx, config.Connection, l.strategy,
		topology.WithBrokers(c.URLs[1:]...), topology.WithLogger(logger),
		topology.WithName(identity(c.Name, l.name)),
		topology.WithConfirmTimeout(cmp.Or(c.Timeout, confirmTimeout)))
	if err != nil {
		return nil, err
	}
	policy := backoff.List(Delays)
	options := []topology.SubscriberOption{
		topology.ForPolicy(policy),
		topology.WithDrainTimeout(5 * time.Second), topology.WithConcurrency(concurrency),
	}
	sub, err := client.NewSubscriber(config, append(options, c.Bug.subscriberOptions()...)...)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	republisher := gated{Republisher: c.Bug.republisher(client), gate: c.Gate}
	retry, err := middleware.NewDelayedRetry(republisher, policy, middleware.WithLogger(logger))
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	for i := range handlers {
		name := fmt.Sprintf("%s handler %d", l.name, i)
		router.AddConsumerHandler(name, l.queue, sub,
			func(msg *message.Message) error { return c.handle(msg, log) }).
			AddMiddleware(retry.Middleware)
	}
	return client, nil
}

var (
	errFailed  = errors.New("this attempt fails")
	errRefused = errors.New("this message fails for good")
)

// handle follows the message's fate, and logs it first.
func (c consumer) handle(msg *message.Message, log io.Writer) error {
	ctx := msg.Context()
	n, err := strconv.Atoi(string(msg.Payload))
	if err != nil {
		return middleware.Permanent(fmt.Errorf("not a number: %w", err))
	}
	raw, _ := topology.Received(ctx)
	nonce, _ := raw.Headers[keys.Publish].(string)
	_, aside := raw.Headers[keys.Snoozed]
	a := Attempt{
		Began: time.Now(), N: n, Attempt: middleware.Attempt(ctx),
		Redelivered: raw.Redelivered, Aside: aside, Nonce: nonce, Priority: int(raw.Priority),
	}
	a.Outcome = c.Seed.Of(n, a.Attempt)
	if a.Outcome == Hung {
		rest(ctx, time.Second+time.Duration(c.Seed.roll(n, 100+a.Attempt)%1000)*time.Millisecond)
	}
	a.At = time.Now()
	if _, err := io.WriteString(log, a.line()); err != nil {
		fmt.Fprintf(os.Stderr, "consumer %s: %v\n", c.Name, err)
		os.Exit(4) // a message whose attempt is not logged must not be acked
	}
	switch a.Outcome {
	case Handled:
		return nil
	case Panicked:
		panic(errFailed)
	case Permanent:
		return middleware.Permanent(errRefused)
	}
	return errFailed
}

// gated keeps messages out of the last wait queue while it is being deleted: they would be lost
// with it (F10).
type gated struct {
	middleware.Republisher
	gate string
}

func (g gated) Republish(
	ctx context.Context, msg *message.Message, delay time.Duration, notes header.RetryState,
) (middleware.Republished, error) {
	if delay == Delays[len(Delays)-1] {
		open, err := lockShared(g.gate)
		if err != nil {
			return middleware.Republished{}, err
		}
		defer open()
	}
	return g.Republisher.Republish(ctx, msg, delay, notes)
}

// Attempt is one call of a consumer's handler.
type Attempt struct {
	Consumer    string
	Began, At   time.Time // the call, and its end
	N, Attempt  int
	Outcome     Outcome
	Redelivered bool   // the broker says so
	Aside       bool   // the copy was set aside, which counts no attempt
	Nonce       string // of the publish that made this copy; empty for the producer's
	Priority    int    // as the handler sees it
}

// line returns the line that a consumer logs before it answers.
func (a Attempt) line() string {
	nonce := a.Nonce
	if nonce == "" {
		nonce = "-"
	}
	return fmt.Sprintf("%d %d %d %d %d %s %t %t %s\n", a.Began.UnixNano(), a.At.UnixNano(),
		a.N, a.Attempt, a.Priority, a.Outcome, a.Redelivered, a.Aside, nonce)
}

func parseLine(line string) (Attempt, error) {
	f := strings.Fields(line)
	if len(f) != 9 {
		return Attempt{}, fmt.Errorf("a consumer's log has the line %q: want 9 fields", line)
	}
	var numbers [5]int64
	for i := range numbers {
		var err error
		if numbers[i], err = strconv.ParseInt(f[i], 10, 64); err != nil {
			return Attempt{}, fmt.Errorf("a consumer's log has the line %q: %w", line, err)
		}
	}
	a := Attempt{
		Began: time.Unix(0, numbers[0]), At: time.Unix(0, numbers[1]),
		N: int(numbers[2]), Attempt: int(numbers[3]), Priority: int(numbers[4]),
		Outcome: Outcome(f[5]), Redelivered: f[6] == "true", Aside: f[7] == "true",
	}
	if f[8] != "-" {
		a.Nonce = f[8]
	}
	return a, nil
}

// tail reads the lines that are appended to a file. It leaves an incomplete line for the next time.
type tail struct {
	// consumer returns the consumer of a message by its number.
	consumer func(n int) string
	name     string
	offset   int64
}

func (t *tail) read() ([]Attempt, error) {
	f, err := os.Open(t.name)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Seek(t.offset, io.SeekStart); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	var attempts []Attempt
	for line := range bytes.Lines(data) {
		a, err := parseLine(string(line))
		if err != nil {
			return attempts, err
		}
		a.Consumer = t.consumer(a.N)
		attempts = append(attempts, a)
	}
	t.offset += int64(len(data))
	return attempts, nil
}
