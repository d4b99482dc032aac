package topology_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// delivered returns a message with ten metadata keys as the real Subscriber
// delivers it, and the middleware on the real client.
func delivered(tb testing.TB) (*middleware.DelayedRetry, *message.Message) {
	tb.Helper()
	url, queue := testbroker.URL(tb), testbroker.Queue(tb)
	policy := backoff.List{time.Second}
	client, sub := rig.OpenSubscriber(tb, url, topology.PerQueue{}, policy)
	retry, err := middleware.NewDelayedRetry(client, policy)
	require.NoError(tb, err)
	messages, err := sub.Subscribe(tb.Context(), queue)
	require.NoError(tb, err)
	headers := amqp.Table{}
	for i := range 10 {
		headers[fmt.Sprintf("key-%d", i)] = "value"
	}
	rig.Publish(tb, url, "", queue, amqp.Publishing{Headers: headers, Body: []byte("body")})
	msg := <-messages
	require.GreaterOrEqual(tb, len(msg.Metadata), 10)
	tb.Cleanup(func() { msg.Ack() })
	return retry, msg
}

func succeed(*message.Message) ([]*message.Message, error) { return nil, nil }

func TestSuccessPathAllocatesNothing(t *testing.T) {
	retry, msg := delivered(t)
	handler := retry.Middleware(succeed)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if _, err := handler(msg); err != nil {
			t.Fatal(err)
		}
	}))
}

func BenchmarkSuccessPath(b *testing.B) {
	retry, msg := delivered(b)
	for _, c := range []struct {
		name    string
		handler message.HandlerFunc
	}{
		{"bare", succeed},
		{"Recoverer", wmiddleware.Recoverer(succeed)},
		{"DelayedRetry", retry.Middleware(succeed)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.handler(msg)
			}
		})
	}
}
