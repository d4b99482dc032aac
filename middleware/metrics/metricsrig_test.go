package metrics_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
)

// patience bounds every wait on a condition.
const patience = 60 * time.Second

// events keeps the events of an observer, by message id.
type events struct {
	mu   sync.Mutex
	byID map[string][]middleware.Event
}

func (o *events) Observe(_ context.Context, e middleware.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID == nil {
		o.byID = map[string][]middleware.Event{}
	}
	o.byID[e.MessageID] = append(o.byID[e.MessageID], e)
}

func (o *events) about(id string) []middleware.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.byID[id])
}

// line is a log line at level info or error.
type line struct {
	level, msg string
	fields     watermill.LogFields
}

// logs keeps the log lines about a message.
type logs struct {
	shared *struct {
		mu    sync.Mutex
		lines []line
	}
	fields watermill.LogFields
}

func newLogs() logs {
	return logs{shared: &struct {
		mu    sync.Mutex
		lines []line
	}{}}
}

func (l logs) add(level, msg string, fields watermill.LogFields) {
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	l.shared.lines = append(l.shared.lines, line{level, msg, l.fields.Add(fields)})
}

func (l logs) Error(msg string, err error, fields watermill.LogFields) {
	l.add("error", msg, fields.Add(watermill.LogFields{"error": err}))
}
func (l logs) Info(msg string, fields watermill.LogFields) { l.add("info", msg, fields) }
func (l logs) Debug(string, watermill.LogFields)           {}
func (l logs) Trace(string, watermill.LogFields)           {}
func (l logs) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return logs{l.shared, l.fields.Add(fields)}
}

func (l logs) about(id string) []line {
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	var found []line
	for _, line := range l.shared.lines {
		if line.fields["message_id"] == id {
			found = append(found, line)
		}
	}
	return found
}

// publish publishes as a plain AMQP client does, confirmed.
func publish(t testing.TB, url, queue string, msg amqp.Publishing) {
	t.Helper()
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.Confirm(false))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, msg)
	require.NoError(t, err)
	ok, err := confirm.WaitContext(ctx)
	require.NoError(t, err)
	require.True(t, ok, "the broker has confirmed it")
}

// kill takes the messages of a queue and loses the connection, as a process does
// that dies while it handles them.
func kill(t *testing.T, url, queue string, messages int) {
	t.Helper()
	conn, err := amqp.Dial(url)
	require.NoError(t, err)
	defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
	ch, err := conn.Channel()
	require.NoError(t, err)
	for range messages {
		testbroker.WaitFor(t, "a message in "+queue, patience, func() bool {
			_, ok, err := ch.Get(queue, false)
			require.NoError(t, err)
			return ok
		})
	}
}

// picky refuses messages by their id.
type picky struct{ wamqp.DefaultMarshaler }

func (m picky) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	if d.MessageId == "undecodable" {
		return nil, errors.New("not for me")
	}
	return m.DefaultMarshaler.Unmarshal(d)
}

// run runs a router until the test ends.
func run(t *testing.T, router *message.Router) (stop func()) {
	t.Helper()
	running := make(chan error, 1)
	go func() { running <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-running:
		t.Fatalf("router did not start: %v", err)
	case <-time.After(patience):
		t.Fatal("router did not start")
	}
	stop = sync.OnceFunc(func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-running)
	})
	t.Cleanup(stop)
	return stop
}
