package metrics_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
)

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
		rig.WaitFor(t, "a message in "+queue, func() bool {
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

func TestMain(m *testing.M) { testbroker.Main(m, func() error { return goleak.Find() }) }
