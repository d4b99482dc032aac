package topology_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
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
	for name, config := range map[string]func(*wamqp.Config){"classic": func(*wamqp.Config) {}, "quorum": rig.QuorumQueue} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, queue := testbroker.URL(t), testbroker.Queue(t)
			policy := backoff.List{time.Second, 2 * time.Second}
			overlap := name == "classic"
			all := rig.NewLedger()
			// What ends in 7 fails at its first attempt, wherever that is.
			handler := func(msg *message.Message) ([]*message.Message, error) {
				body := string(msg.Payload)
				if strings.HasSuffix(body, "7") && middleware.Attempt(msg.Context()) == 1 && all.FailOnce(body) {
					return nil, rig.ErrFailed
				}
				all.Handle(body)
				return nil, nil
			}
			serve := func(policy backoff.Policy, options ...topology.SubscriberOption) *rig.Service {
				return rig.Start(t, rig.Config{URL: url, Queue: queue, Policy: policy, Configure: config, Handler: handler, SubscriberOptions: options})
			}
			cfg := rig.QueueConfig(url)
			config(&cfg)
			rig.DeclareQueue(t, url, queue, cfg.Queue.Arguments)
			published := 0
			traffic := func(n int) {
				for range n {
					rig.Publish(t, url, "", queue, rig.Message(fmt.Sprint("message ", published)))
					published++
				}
			}

			stopOld := startOld(t, url, queue, name, all)
			traffic(60)
			if !overlap {
				rig.WaitFor(t, "the old one is done", func() bool { return all.Count() == published })
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
			retrying.Stop()
			traffic(60)
			rig.WaitFor(t, "the wait queues are empty", func() bool {
				return testbroker.Depth(t, url, queue+".wait.1s") == 0 && testbroker.Depth(t, url, queue+".wait.2s") == 0 &&
					testbroker.Depth(t, url, queue) == 0
			})
			if !overlap {
				leaving.Stop()
			}
			stopOld = startOld(t, url, queue, name, all)
			leaving.Stop()
			traffic(60)

			rig.WaitFor(t, "every message is handled or dead-lettered", func() bool {
				dead := max(0, testbroker.Depth(t, url, queue+".dlq"))
				return all.Count()+dead >= published
			})
			stopOld()
			require.Zero(t, testbroker.Depth(t, url, queue))
			dead := testbroker.Depth(t, url, queue+".dlq")
			require.Equal(t, published, all.Count()+dead)
			require.Zero(t, all.Undecodable(), "an old consumer met a message that it cannot decode")
			t.Logf("%d published, %d handled, %d dead-lettered while leaving", published, all.Count(), dead)
		})
	}
}

// plainRouter runs a router on our Subscriber without our middleware, and
// returns what stops it.
func plainRouter(t *testing.T, url, queue string, config func(*wamqp.Config), handler message.HandlerFunc) func() {
	t.Helper()
	cfg := rig.QueueConfig(url)
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
func startOld(t *testing.T, url, queue, kind string, all *rig.Ledger) func() {
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
				all.Handle(body)
			}
			if strings.HasPrefix(lines.Text(), "undecodable") {
				all.Refuse()
			}
		}
		_ = child.Wait()
	}()
	select {
	case <-ready:
	case <-time.After(rig.Patience):
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
	cfg := rig.QueueConfig(url)
	if kind == "quorum" {
		rig.QuorumQueue(&cfg)
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
func notifyTerm(c chan<- os.Signal) { signal.Notify(c, syscall.SIGTERM) }

// oldLogger tells its parent of messages that watermill-amqp cannot decode.
type oldLogger struct{ watermill.NopLogger }

func (oldLogger) Error(msg string, err error, _ watermill.LogFields) {
	if err != nil && strings.Contains(err.Error(), "is not a string") {
		fmt.Println("undecodable", msg, err)
	}
}

func (l oldLogger) With(watermill.LogFields) watermill.LoggerAdapter { return l }
