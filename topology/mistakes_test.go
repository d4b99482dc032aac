package topology_test

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// The likeliest mistakes that are in no other file, each with the message it ends
// in. docs/troubleshooting.md lists them all.

// foreignQueue tells this test binary to be a service with the wrong subscriber.
const foreignQueue = "MILLPOND_TEST_FOREIGN_QUEUE"

// With watermill-amqp's own Subscriber nothing can be retried. The service is a
// process of its own, for that Subscriber races with itself.
func TestWatermillAMQPsSubscriberIsNamed(t *testing.T) {
	if queue := os.Getenv(foreignQueue); queue != "" {
		serveForeign(t, os.Getenv("AMQP_URL"), queue)
		return
	}
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	rig.DeclareQueue(t, url, queue, nil)
	rig.Publish(t, url, "", queue, amqp.Publishing{Body: []byte("order")})
	child := exec.Command(os.Args[0], "-test.run=^TestWatermillAMQPsSubscriberIsNamed$")
	child.Env = append(os.Environ(), foreignQueue+"="+queue, "AMQP_URL="+url)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	timer := time.AfterFunc(rig.Patience, func() { _ = child.Process.Kill() })
	defer timer.Stop()
	var named bool
	for lines := bufio.NewScanner(out); !named && lines.Scan(); {
		named = strings.Contains(lines.Text(), "make the subscriber with the client (Client.NewSubscriber), and pass on the message itself, no copy")
	}
	_ = child.Process.Kill()
	_ = child.Wait()
	require.True(t, named, "not in the log")
}

func serveForeign(t *testing.T, url, queue string) {
	client, err := topology.Open(t.Context(), rig.ConnectionConfig(url), topology.PerQueue{})
	require.NoError(t, err)
	sub, err := wamqp.NewSubscriber(rig.QueueConfig(url), watermill.NopLogger{})
	require.NoError(t, err)
	retry, err := middleware.NewDelayedRetry(client, rig.Quickly(1), middleware.WithLogger(watermill.NewStdLoggerWithOut(os.Stdout, false, false)))
	require.NoError(t, err)
	router := message.NewDefaultRouter(watermill.NopLogger{})
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("handler", queue, sub, func(*message.Message) error { return rig.ErrFailed })
	require.NoError(t, router.Run(t.Context()))
}

// A user that may not publish to the wait queues: the message is held, and the log
// says what to grant. One that may not read its queue is told when it subscribes.
func TestMissingWriteAndReadPermissionsAreNamed(t *testing.T) {
	t.Parallel()
	const wayOut = "the user may not: grant it what Plan.Permissions lists"
	node := testbroker.Private(t)
	policy := backoff.List{time.Second}
	grant := testbroker.Grant{VHost: "/", User: "narrow", Configure: "^orders.*$", Write: "^$", Read: "^$"}
	node.Grant(t, grant)
	url, narrow := node.URL(), node.URLOf(grant.User)
	admin, sub := rig.OpenSubscriber(t, url, topology.PerQueue{}, policy)
	require.NoError(t, sub.SubscribeInitialize("orders"))
	require.NoError(t, admin.Close())
	client, sub := rig.OpenSubscriber(t, narrow, topology.PerQueue{}, policy, topology.WithPreProvisioned())
	_, err := sub.Subscribe(t.Context(), "orders")
	require.ErrorContains(t, err, wayOut)
	require.NoError(t, client.Close())

	grant.Read = "^orders$"
	node.Grant(t, grant)
	attempts := make(chan int, 10)
	r := rig.Start(t, rig.Config{
		URL: narrow, AdminURL: url, Queue: "orders", Policy: policy, Handler: rig.FailUntil(2, attempts),
		ClientOptions: []topology.Option{topology.WithPreProvisioned()},
	})
	rig.Publish(t, url, "", "orders", amqp.Publishing{Body: []byte("order")})
	rig.WaitFor(t, "the line in the log", func() bool {
		return r.Logs.Said("Failed message cannot be handed over, holding it") > 0 && r.Logs.Said(wayOut) > 0
	})
	grant.Write = `^amq\.default$`
	node.Grant(t, grant)
	rig.AwaitAttempts(t, attempts, 1, 2)
}

// A classic main queue works, and its limits are named; a quorum queue has none.
func TestClassicMainQueueIsNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config func(*wamqp.Config)
		said   int
	}{
		"classic": {func(*wamqp.Config) {}, 1},
		"quorum":  {rig.QuorumQueue, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig.Start(t, rig.Config{Policy: rig.Quickly(1), Configure: c.config, Handler: succeed})
			require.Equal(t, c.said, r.Logs.Said("Warning: the queue is a classic one"))
		})
	}
}

// A service with a shorter policy gives up what one with a longer policy retries.
func TestTwoPoliciesOnOneQueueAreNamed(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	attempts := make(chan int, 10)
	patient := rig.Start(t, rig.Config{
		URL: url, Queue: queue, Policy: backoff.List{50 * time.Millisecond, 50 * time.Millisecond, 3 * time.Second}, Handler: rig.FailUntil(10, attempts),
	})
	patient.Publish(amqp.Publishing{Body: []byte("order")})
	rig.AwaitAttempts(t, attempts, 1, 2, 3)
	rig.WaitFor(t, "the message waits", func() bool { return testbroker.Depth(t, url, queue+".wait.3s") == 1 })
	patient.Stop()
	hasty := rig.Start(t, rig.Config{URL: url, Queue: queue, Policy: backoff.List{50 * time.Millisecond}, Handler: func(*message.Message) ([]*message.Message, error) {
		t.Error("handler was called")
		return nil, nil
	}})
	dead := rig.Take(t, url, queue+".dlq")
	require.Equal(t, "3", dead.Headers[header.DeadFailures])
	rig.WaitFor(t, "the line in the log", func() bool {
		return hasty.Logs.Said("message arrived past its limit: give all consumers of a queue the same policy and limits") == 1
	})
}

// RetryAfter may ask for longer than every wait queue: the message waits in rounds,
// which is said once.
func TestDelayLongerThanEveryWaitQueueIsNamed(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 10)
	h := rig.FailUntil(3, attempts)
	r := rig.Start(t, rig.Config{Policy: rig.Quickly(1), Handler: func(msg *message.Message) ([]*message.Message, error) {
		produced, err := h(msg)
		return produced, middleware.RetryAfter(err, 2500*time.Millisecond)
	}})
	for range 2 {
		r.Publish(amqp.Publishing{Body: []byte("order")})
	}
	rig.AwaitAttempts(t, attempts, 1, 1, 2, 2)
	require.Equal(t, 1, r.Logs.Said("A delay is longer than every wait queue"))
	require.Contains(t, r.Logs.Text(), "delay:2.5s longest:1s")
	r.RequireNothingLeft(0)
}
