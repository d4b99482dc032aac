package topology_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/plugin"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testbench"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// childQueue tells this test binary to be the service of TestSIGTERMDrains.
const childQueue = "MILLPOND_TEST_CHILD_QUEUE"

// SIGTERM with a handler in progress that succeeds within the drain: acked, no
// duplicate.
func TestSIGTERMDrains(t *testing.T) {
	if queue := os.Getenv(childQueue); queue != "" {
		serve(t, os.Getenv("AMQP_URL"), queue)
		return
	}
	t.Parallel()
	url, queue := testbench.URL(t), testbench.Queue(t)
	child := exec.Command(os.Args[0], "-test.run=^TestSIGTERMDrains$", "-test.v")
	child.Env = append(os.Environ(), childQueue+"="+queue, "AMQP_URL="+url)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	t.Cleanup(func() { _ = child.Process.Kill() })

	lines := bufio.NewScanner(out)
	await := func(line string) {
		for lines.Scan() {
			if lines.Text() == line {
				return
			}
		}
		t.Fatalf("the service ended before it said %q", line)
	}
	await("ready")
	publish(t, url, "", queue, amqp.Publishing{Body: []byte("in progress"), DeliveryMode: amqp.Persistent})
	publish(t, url, "", queue, amqp.Publishing{Body: []byte("behind it"), DeliveryMode: amqp.Persistent})
	await("handling in progress")
	require.NoError(t, child.Process.Signal(syscall.SIGTERM))
	await("handled in progress")
	await("closed")
	require.NoError(t, child.Wait())

	left := take(t, url, queue)
	require.Equal(t, "behind it", string(left.Body))
	require.Zero(t, testbench.Depth(t, url, queue), "what was in progress was acked")
	require.Zero(t, testbench.Depth(t, url, queue+".wait.1s"))
}

// serve is a service that handles messages slowly until SIGTERM.
func serve(t *testing.T, url, queue string) {
	cfg := wamqp.NewDurableQueueConfig(url)
	policy := backoff.List{time.Second}
	client, err := topology.Open(context.Background(), cfg.Connection, topology.PerQueue{})
	require.NoError(t, err)
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy))
	require.NoError(t, err)
	retry, err := middleware.NewDelayedRetry(client, policy)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddPlugin(plugin.SignalsHandler)
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("slow", queue, sub, func(msg *message.Message) error {
		fmt.Println("handling", string(msg.Payload))
		select {
		case <-time.After(2 * time.Second):
			fmt.Println("handled", string(msg.Payload))
			return nil
		case <-msg.Context().Done():
			fmt.Println("interrupted", string(msg.Payload))
			return msg.Context().Err()
		}
	})
	go func() {
		<-router.Running()
		fmt.Println("ready")
	}()
	require.NoError(t, router.Run(context.Background()))
	require.NoError(t, client.Close())
	fmt.Println("closed")
}

// A handler that fails while Close drains is still handed over; one that does
// not end in time goes back to its queue, burning no attempt.
func TestCloseDrains(t *testing.T) {
	t.Parallel()
	t.Run("failure is handed over", func(t *testing.T) {
		t.Parallel()
		handling, closing := make(chan struct{}), make(chan struct{})
		r := newRig(t, rigConfig{
			policy: backoff.List{30 * time.Second},
			handler: func(msg *message.Message) ([]*message.Message, error) {
				close(handling)
				<-closing
				return nil, errFailed
			},
		})
		r.publish(amqp.Publishing{Body: []byte("late")})
		<-handling
		done := make(chan struct{})
		go func() { defer close(done); r.stop() }()
		testbench.WaitFor(t, "the router closes", patience, func() bool { return strings.Contains(r.logs.text(), "Closing router") })
		close(closing)
		<-done
		require.Equal(t, 1, testbench.Depth(t, r.url, r.queue+".wait.30s"))
		require.Zero(t, testbench.Depth(t, r.url, r.queue))
	})
	t.Run("too slow goes back", func(t *testing.T) {
		t.Parallel()
		handling := make(chan struct{})
		r := newRig(t, rigConfig{
			policy:     backoff.List{30 * time.Second},
			subOptions: []topology.SubscriberOption{topology.WithDrainTimeout(500 * time.Millisecond)},
			handler: func(msg *message.Message) ([]*message.Message, error) {
				close(handling)
				<-msg.Context().Done()
				return nil, msg.Context().Err()
			},
		})
		r.publish(amqp.Publishing{Body: []byte("slow")})
		<-handling
		r.stop()
		back := take(t, r.url, r.queue)
		require.Equal(t, "slow", string(back.Body))
		require.NotContains(t, back.Headers, middleware.FailuresKey)
		require.Zero(t, testbench.Depth(t, r.url, r.queue+".wait.30s"))
	})
}

// Close is bounded in time also where the broker has stopped answering.
func TestCloseReturnsFromAFrozenBroker(t *testing.T) {
	t.Parallel()
	node := testbench.Private(t)
	handling, confirmed := make(chan struct{}), make(chan struct{})
	r := newRig(t, rigConfig{
		url: node.URL(), queue: "orders", policy: backoff.List{time.Second},
		clientOptions: []topology.Option{topology.WithConfirmTimeout(time.Second)},
		subOptions:    []topology.SubscriberOption{topology.WithDrainTimeout(time.Second)},
		handler: func(msg *message.Message) ([]*message.Message, error) {
			<-confirmed
			node.Freeze(t)
			close(handling)
			return nil, errFailed
		},
	})
	r.publish(amqp.Publishing{Body: []byte("stuck"), DeliveryMode: amqp.Persistent})
	close(confirmed)
	<-handling
	begun := time.Now()
	r.stop()
	require.Less(t, time.Since(begun), 20*time.Second)
	node.Thaw(t)
	require.Equal(t, "stuck", string(take(t, node.URL(), "orders").Body))
}
