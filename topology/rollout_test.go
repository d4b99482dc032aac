package topology_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// oldQueue tells this test binary to be an old service of TestRolloutAndRollback.
const oldQueue = "MILLPOND_TEST_OLD_QUEUE"

// An old consumer, on watermill-amqp's own Subscriber, and a new one on one
// queue, through the documented release order and back again: nothing is lost,
// and no old consumer ever sees a message that it cannot decode (M7).
//
// On a classic queue old and new overlap. On a quorum queue they do not: there
// watermill-amqp cannot decode what anyone has nacked, waiting or not (F1).
//
// The old one is a process of its own: watermill-amqp races with itself when it
// is closed, which -race would report here.
func TestRolloutAndRollback(t *testing.T) {
	if queue := os.Getenv(oldQueue); queue != "" {
		serveOld(os.Getenv("AMQP_URL"), queue)
		return
	}
	t.Parallel()
	for name, config := range map[string]func(*wamqp.Config){"classic": func(*wamqp.Config) {}, "quorum": quorumQueue} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, queue := testbroker.URL(t), testbroker.Queue(t)
			policy := backoff.List{time.Second, 2 * time.Second}
			overlap := name == "classic"
			all := newLedger()
			// What ends in 7 fails at its first attempt, wherever that is.
			handler := func(msg *message.Message) ([]*message.Message, error) {
				body := string(msg.Payload)
				if strings.HasSuffix(body, "7") && middleware.Attempt(msg.Context()) == 1 && all.failOnce(body) {
					return nil, errFailed
				}
				all.handle(body)
				return nil, nil
			}
			serve := func(policy backoff.Policy, options ...topology.SubscriberOption) *rig {
				return newRig(t, rigConfig{url: url, queue: queue, policy: policy, config: config, handler: handler, subOptions: options})
			}
			declareFirst(t, url, queue, config)
			published := 0
			traffic := func(n int) {
				for range n {
					publish(t, url, "", queue, amqp.Publishing{Body: []byte(fmt.Sprint("message ", published)), DeliveryMode: amqp.Persistent})
					published++
				}
			}

			stopOld := startOld(t, url, queue, name, all)
			traffic(60)
			if !overlap {
				testbroker.WaitFor(t, "the old one is done", patience, func() bool { return all.count() == published })
				stopOld()
			}
			// Release 1: the subscriber, which gives back what is nacked; no middleware.
			stopSubscriberOnly := plainRouter(t, url, queue, config, handler)
			traffic(60)
			stopOld()
			// Release 2: the middleware.
			retrying := serve(policy)
			traffic(60)
			stopSubscriberOnly()
			traffic(60)
			// Leaving: stop retrying, drain, then remove the subscriber.
			leaving := serve(backoff.None{})
			retrying.stop()
			traffic(60)
			testbroker.WaitFor(t, "the wait queues are empty", patience, func() bool {
				return testbroker.Depth(t, url, queue+".wait.1s") == 0 && testbroker.Depth(t, url, queue+".wait.2s") == 0 &&
					testbroker.Depth(t, url, queue) == 0
			})
			if !overlap {
				leaving.stop()
			}
			stopOld = startOld(t, url, queue, name, all)
			leaving.stop()
			traffic(60)

			testbroker.WaitFor(t, "every message is handled or dead-lettered", patience, func() bool {
				dead := max(0, testbroker.Depth(t, url, queue+".dlq"))
				return all.count()+dead >= published
			})
			stopOld()
			require.Zero(t, testbroker.Depth(t, url, queue))
			dead := testbroker.Depth(t, url, queue+".dlq")
			require.Equal(t, published, all.count()+dead)
			require.Zero(t, all.undecodable(), "an old consumer met a message that it cannot decode")
			t.Logf("%d published, %d handled, %d dead-lettered while leaving", published, all.count(), dead)
		})
	}
}

func declareFirst(t *testing.T, url, queue string, config func(*wamqp.Config)) {
	t.Helper()
	cfg := queueConfig(url)
	config(&cfg)
	_, err := testbroker.Channel(t, url).QueueDeclare(queue, true, false, false, false, cfg.Queue.Arguments)
	require.NoError(t, err)
}

// plainRouter runs a router on our Subscriber without our middleware, and
// returns what stops it.
func plainRouter(t *testing.T, url, queue string, config func(*wamqp.Config), handler message.HandlerFunc) func() {
	t.Helper()
	cfg := queueConfig(url)
	config(&cfg)
	client, err := topology.Open(t.Context(), cfg.Connection, topology.PerQueue{})
	require.NoError(t, err)
	sub, err := client.NewSubscriber(cfg, topology.WithRequeueOnNack(), topology.ForPolicy(backoff.List{time.Second}))
	require.NoError(t, err)
	router := message.NewDefaultRouter(watermill.NopLogger{})
	router.AddConsumerHandler("handler", queue, sub, func(msg *message.Message) error {
		_, err := handler(msg)
		return err
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	return func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
		require.NoError(t, client.Close())
	}
}

// startOld starts an old service and returns what ends it.
func startOld(t *testing.T, url, queue, kind string, all *ledger) func() {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestRolloutAndRollback$")
	child.Env = append(os.Environ(), oldQueue+"="+kind+" "+queue, "AMQP_URL="+url)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	ready, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if lines.Text() == "ready" {
				close(ready)
			}
			if body, ok := strings.CutPrefix(lines.Text(), "handled "); ok {
				all.handle(body)
			}
			if strings.HasPrefix(lines.Text(), "undecodable") {
				all.refuse()
			}
		}
		_ = child.Wait()
	}()
	select {
	case <-ready:
	case <-time.After(patience):
		t.Fatal("the old service did not start")
	}
	stop := sync.OnceFunc(func() {
		_ = child.Process.Signal(syscall.SIGTERM)
		<-ended
	})
	t.Cleanup(stop)
	return stop
}

// serveOld is a service on watermill-amqp alone: what fails is nacked, and comes
// back at once.
func serveOld(url, kindAndQueue string) {
	kind, queue, _ := strings.Cut(kindAndQueue, " ")
	cfg := queueConfig(url)
	if kind == "quorum" {
		quorumQueue(&cfg)
	}
	sub, err := wamqp.NewSubscriber(cfg, oldLogger{})
	if err != nil {
		panic(err)
	}
	messages, err := sub.Subscribe(context.Background(), queue)
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	failed := map[string]bool{}
	term := make(chan os.Signal, 1)
	notifyTerm(term)
	for {
		select {
		case msg := <-messages:
			body := string(msg.Payload)
			if strings.HasSuffix(body, "7") && !failed[body] && kind == "classic" {
				failed[body] = true
				msg.Nack()
				continue
			}
			fmt.Println("handled", body)
			msg.Ack()
			<-msg.Context().Done() // acked by the broker's count
		case <-term:
			_ = sub.Close()
			os.Exit(0)
		}
	}
}
