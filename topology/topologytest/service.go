package topologytest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// errClosed is the error of a handler that fails.
var errClosed = errors.New("the shop is closed")

// inbox is a queue that a service consumes. It has a script for each message, and records the
// calls of the handler.
type inbox struct {
	queue string
	plan  topology.Plan

	mu      sync.Mutex
	scripts map[string]script
	calls   map[string][]call
}

// script says how a message is handled.
type script struct {
	calls  int // as often as the handler must be called
	handle func(n int) error
}

// call is one call of the handler for a message.
type call struct {
	at      time.Time
	attempt int
	state   header.RetryState
	raw     amqp.Delivery
}

// inbox makes a new queue's inbox, and has the parts of its plan deleted at the end.
func (s *suite) inbox(tr *trial, purpose string, delays []time.Duration) *inbox {
	b := &inbox{
		queue: s.queue(purpose), scripts: map[string]script{}, calls: map[string][]call{},
	}
	b.plan = s.planOf(tr, b.queue, delays)
	s.parts.add(b.plan, s.planOf(tr, s.queue("another"), delays))
	return b
}

// idOf returns the id of a message of the suite: the message id, else the body.
func idOf(d amqp.Delivery) string {
	if d.MessageId != "" {
		return d.MessageId
	}
	return string(d.Body)
}

func (b *inbox) handle(msg *message.Message) error {
	raw, _ := topology.Received(msg.Context())
	c := call{
		time.Now(), middleware.Attempt(msg.Context()), middleware.StateOf(msg.Context()), raw,
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	id := idOf(raw)
	b.calls[id] = append(b.calls[id], c)
	if known, ok := b.scripts[id]; ok {
		return known.handle(len(b.calls[id]))
	}
	return nil // a message of another queue, which NothingIsLeft names
}

// fails is the script of a message whose first calls fail with err.
func fails(calls int, err error) script {
	return script{calls + 1, func(n int) error {
		if n <= calls {
			return err
		}
		return nil
	}}
}

func (b *inbox) callsOf(id string) []call {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls[id]
}

// expect says how the handler treats a message.
func (b *inbox) expect(id string, then script) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.scripts[id] = then
}

// send publishes a message whose script is known, as a plain AMQP client does.
func (s *suite) send(tr *trial, b *inbox, msg amqp.Publishing, then script) {
	b.expect(msg.MessageId, then)
	ch, err := s.conn.Channel()
	tr.Must(err, "open a channel")
	defer func() { _ = ch.Close() }() // The confirm says all.
	tr.Must(ch.Confirm(false), "select confirms")
	confirm, err := ch.PublishWithDeferredConfirm("", b.queue, true, false, msg)
	tr.Must(err, "publish to queue %q", b.queue)
	select {
	case <-confirm.Done():
	case <-time.After(s.Patience):
	}
	if !confirm.Acked() {
		tr.Fatalf("the broker does not confirm a message for queue %q within %v", b.queue, s.Patience)
	}
}

// text returns a message with an id, and the id.
func (s *suite) text(tr *trial, of string) (amqp.Publishing, string) {
	id := strings.Join([]string{s.prefix, tr.Name, of}, ".")
	return amqp.Publishing{
		MessageId: id, Body: []byte("the body of " + id), DeliveryMode: amqp.Persistent,
	}, id
}

// awaitCalls waits until a message has had all calls of its script. due is how long that takes
// if no message is late.
func (s *suite) awaitCalls(tr *trial, b *inbox, id string, due time.Duration) []call {
	b.mu.Lock()
	want := b.scripts[id].calls
	b.mu.Unlock()
	if !tr.Await(due, func() bool { return len(b.callsOf(id)) >= want }) {
		tr.Fatalf("the handler got the message %s %d times in place of %d, within %v of the time that "+
			"its waits take together (%v). The message is lost, or waits too long. %s",
			id, len(b.callsOf(id)), want, tr.Patience, due, s.main.log)
	}
	return b.callsOf(id)
}

// service is a running client, subscriber and router.
type service struct {
	client *topology.Client
	log    *journal
}

// openClient opens a client that ends with the trial.
func (s *suite) openClient(tr *trial, url string, log *journal) *topology.Client {
	// Patience is for messages: a handshake with a busy broker may take longer.
	ctx, cancel := context.WithTimeout(context.Background(), max(s.Patience, defaultPatience))
	defer cancel()
	cfg := s.queueConfig(url)
	s.rounds.Watch(&cfg.Connection)
	client, err := topology.Open(ctx, cfg.Connection, s.Strategy, topology.WithLogger(log))
	tr.Must(err, "topology.Open with the strategy")
	tr.Cleanup(client.Close)
	return client
}

// serve starts a service on queues. It ends with the trial.
func (s *suite) serve(tr *trial, url string, policy backoff.Policy, boxes ...*inbox) *service {
	log := &journal{}
	client := s.openClient(tr, url, log)
	retry, err := middleware.NewDelayedRetry(client, policy)
	tr.Must(err, "make DelayedRetry")
	sub, err := client.NewSubscriber(s.queueConfig(url), retry,
		topology.WithConcurrency(8))
	tr.Must(err, "make a Subscriber")
	// A router that cannot subscribe would leave a goroutine behind.
	for _, b := range boxes {
		tr.Must(sub.SubscribeInitialize(b.queue), "declare the plan of a queue")
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	tr.Must(err, "make a router")
	router.AddMiddleware(retry.Middleware)
	for _, b := range boxes {
		router.AddConsumerHandler(b.queue, b.queue, sub, b.handle)
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-ended:
		tr.Fatalf("a service with the strategy does not start: %v", err)
	}
	tr.Cleanup(func() error { return errors.Join(router.Close(), <-ended) })
	return &service{client, log}
}

// journal keeps the last errors and warnings of the library.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) keep(text string, err error, fields watermill.LogFields) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.lines) < 20 {
		j.lines = append(j.lines, fmt.Sprintf("%s (%v) %v", text, err, fields))
	}
}

// String returns the lines as an addition to a failure.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.lines) == 0 {
		return "The library has logged no error"
	}
	return "The library has logged: " + strings.Join(j.lines, "; ")
}

func (j *journal) Error(text string, err error, fields watermill.LogFields) {
	j.keep(text, err, fields)
}
func (j *journal) Info(string, watermill.LogFields)  {}
func (j *journal) Debug(string, watermill.LogFields) {}
func (j *journal) Trace(string, watermill.LogFields) {}

// With returns the same journal: the lines name their queue and message themselves.
func (j *journal) With(watermill.LogFields) watermill.LoggerAdapter { return j }
