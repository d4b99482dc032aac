package main

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestMain(m *testing.M) { testbroker.Main(m, func() error { return goleak.Find() }) }

// Given the README's sample with one message, when its context is cancelled while the handler
// works, then the message is handled once and acked.
func TestReadmeSampleRuns(t *testing.T) {
	t.Parallel()
	url := testbroker.Private(t).URL()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls := make(chan string, 10)
	ended := make(chan error, 1)
	go func() {
		ended <- ServeOrders(ctx, url, func(msg *message.Message) error {
			cancel()
			select { // the handler works on while the service shuts down
			case <-msg.Context().Done():
			case <-time.After(300 * time.Millisecond):
			}
			calls <- string(msg.Payload)
			return msg.Context().Err()
		}, watermill.NopLogger{})
	}()
	testbroker.WaitFor(t, "the last queue of the plan", 30*time.Second, func() bool {
		return testbroker.Depth(t, url, "orders.dlq") == 0
	})
	require.NoError(t, testbroker.Channel(t, url).Publish("", "orders", false, false,
		amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("42")}))
	require.NoError(t, <-ended)
	require.Equal(t, "42", <-calls)
	require.Empty(t, calls)
	for _, queue := range []string{
		"orders", "orders.wait.2s", "orders.wait.5s", "orders.wait.15s", "orders.dlq",
	} {
		require.Equal(t, 0, testbroker.Depth(t, url, queue), queue)
	}
}

// A program that uses none of the optional abilities links none of them.
func TestBasicLinksNoRoom(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	linked := strings.Fields(string(out))
	const module = "github.com/millpond-go/millpond"
	require.Contains(t, linked, module+"/internal/consumer")
	for _, room := range []string{
		"/middleware/budget", "/middleware/outage", "/internal/brake", "/internal/fleet",
		"/topology/inorder", "/internal/inorder", "/internal/order",
		"/topology/native", "/internal/native",
		"/internal/management", "/internal/policies",
	} {
		require.NotContains(t, linked, module+room)
	}
}
