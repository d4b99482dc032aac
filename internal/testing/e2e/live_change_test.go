package e2e_test

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

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/native"
)

// Given traffic of which a fifth fails once, when the strategy of a queue changes as in rolling
// deploys until each has followed each other one, on RabbitMQ 4.3 native.Strategy too, then every
// message is handled, and no declaration conflicts. The new instance starts before the old one
// stops.
func TestAnyStrategyToAnyOtherUnderTraffic(t *testing.T) {
	t.Parallel()
	url, queue, handled := testbroker.URL(t), testbroker.Queue(t), rig.NewCalls()
	policy := backoff.List{time.Second, 2 * time.Second}
	var strategies []topology.Strategy
	for _, kind := range []string{
		"quorum", "attempt quorum", "shared quorum", "levels quorum", "returning quorum",
	} {
		strategies = append(strategies, rig.Strategies[kind](t))
	}
	var arguments amqp.Table
	if holds, _ := rig.HoldsRejected(t, url); holds {
		native := native.Strategy{Min: time.Second, Max: 2 * time.Second}
		strategies, arguments = append(strategies, native), rig.RejectArguments(native.Min, native.Max)
	}
	run := func(strategy topology.Strategy) *rig.Service {
		return rig.Start(t, rig.Config{
			URL: url, Queue: queue, Keep: true, Strategy: strategy, Policy: policy,
			Configure: func(cfg *wamqp.Config) {
				rig.Prefetch(20)(cfg)
				cfg.Queue.Arguments = arguments
			},
			Handle: func(msg *message.Message) error {
				body := string(msg.Payload)
				fails := strings.HasSuffix(body, "3") || strings.HasSuffix(body, "7")
				if fails && middleware.Attempt(msg.Context()) == 1 {
					return rig.ErrFailed
				}
				handled.Handle(body)
				return nil
			},
		})
	}
	var order []topology.Strategy // a b a c a, then b c b, then c
	for i, strategy := range strategies {
		rig.RemovePlan(t, url, strategy, queue, policy)
		order = append(order, strategy)
		for _, other := range strategies[i+1:] {
			order = append(order, other, strategy)
		}
	}
	traffic := &stream{url: url, key: queue, pause: 20 * time.Millisecond}
	before := run(order[0])
	traffic.start(t)
	for i, strategy := range order[1:] {
		traffic.more(t, 10)
		after := run(strategy)
		traffic.more(t, 10)
		before.Stop()
		require.NotContains(t, before.Logs.Text(), "PRECONDITION_FAILED", "%T, change %d", strategy, i)
		before = after
	}
	traffic.end(t)
	total := int(traffic.published.Load())
	rig.WaitFor(t, "all to be handled", func() bool { return handled.Count() == total })
	before.RequireNothingLeft(0)
	require.NotContains(t, before.Logs.Text(), "PRECONDITION_FAILED")
	t.Logf("%d messages through %d changes, %d duplicates", total, len(order)-1,
		handled.Total()-total)
}

// oldQueue tells this test binary to be an old service of TestRolloutAndRollback.
const oldQueue = "MILLPOND_TEST_OLD_QUEUE"

// Given an old consumer with the Subscriber of watermill-amqp, when new ones replace it in the
// documented release order and back, then no message is lost, and no old consumer sees a message
// that it cannot decode (M7).
//
// On a classic queue old and new overlap. On a quorum queue they do not, because watermill-amqp
// cannot decode messages there that were given back (F1), also those that were prefetched.
//
// The old one has its own process, because watermill-amqp races with itself at its Close.
func TestRolloutAndRollback(t *testing.T) {
	if queue := os.Getenv(oldQueue); queue != "" {
		serveOld(os.Getenv("AMQP_URL"), queue)
		return
	}
	t.Parallel()
	for name, configure := range map[string]func(*wamqp.Config){
		"classic": func(*wamqp.Config) {},
		"quorum":  func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.Prefetch(10)(cfg) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, queue := testbroker.URL(t), testbroker.Queue(t)
			policy := backoff.List{time.Second, 2 * time.Second}
			overlap := name == "classic"
			all, tried := rig.NewCalls(), rig.NewCalls()
			// Every tenth message fails its first attempt, in any consumer.
			handle := func(msg *message.Message) error {
				body := string(msg.Payload)
				tried.Handle(body)
				if strings.HasSuffix(body, "7") && tried.Of(body) == 1 {
					return rig.ErrFailed
				}
				all.Handle(body)
				return nil
			}
			serve := func(policy backoff.Policy) *rig.Service {
				return rig.Start(t, rig.Config{
					URL: url, Queue: queue, Policy: policy, Configure: configure, Handle: handle,
				})
			}
			cfg := rig.QueueConfig(url)
			configure(&cfg)
			rig.DeclareQueue(t, url, queue, cfg.Queue.Arguments)
			published := 0
			traffic := func(n int) {
				messages := make([]amqp.Publishing, n)
				for i := range messages {
					messages[i] = rig.Message(fmt.Sprint("message ", published))
					published++
				}
				rig.Post(t, url, queue, messages...)
			}

			stopOld := startOld(t, url, queue, name, all)
			traffic(60)
			if !overlap {
				rig.WaitFor(t, "the end of the old one", func() bool { return all.Count() == published })
				stopOld()
			}
			// Release 1: the Subscriber without the middleware. It requeues nacked messages.
			stopSubscriberOnly := plainRouter(t, cfg, queue, handle)
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
			settled := func() bool { // handled or dead: neither ready, unacked nor waiting
				return all.Count()+max(0, leaving.Depth(".dlq")) >= published
			}
			rig.WaitFor(t, "the queues to be empty", settled)
			if !overlap {
				leaving.Stop()
			}
			stopOld = startOld(t, url, queue, name, all)
			leaving.Stop()
			traffic(60)

			rig.WaitFor(t, "all to be handled or dead-lettered", settled)
			stopOld()
			require.Zero(t, leaving.Depth(""))
			dead := leaving.Depth(".dlq")
			require.Equal(t, published, all.Count()+dead)
			t.Logf("%d published, %d handled, %d dead-lettered at the end", published, all.Count(), dead)
		})
	}
}

// plainRouter runs a router on a Subscriber of the client without the middleware.
func plainRouter(
	t *testing.T, cfg wamqp.Config, queue string, handle func(*message.Message) error,
) (stop func()) {
	t.Helper()
	client, err := topology.Open(t.Context(), cfg.Connection, topology.PerQueue{})
	require.NoError(t, err)
	policy := backoff.List{time.Second}
	sub, err := client.NewSubscriber(cfg, topology.WithRequeueOnNack(), topology.ForPolicy(policy))
	require.NoError(t, err)
	router := message.NewDefaultRouter(watermill.NopLogger{})
	router.AddConsumerHandler("handler", queue, sub, handle)
	ended := rig.Run(t, router)
	return func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
		require.NoError(t, client.Close())
	}
}

// startOld starts an old service. A message that it cannot decode fails the test.
func startOld(t *testing.T, url, queue, kind string, all *rig.Calls) (stop func()) {
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
				t.Error("an old consumer met a message that it cannot decode:", lines.Text())
			}
		}
		_ = child.Wait()
	}()
	rig.Await(t, ready)
	stop = sync.OnceFunc(func() {
		_ = child.Process.Signal(syscall.SIGTERM)
		<-ended
	})
	t.Cleanup(stop)
	return stop
}

// serveOld is a service on watermill-amqp alone. It nacks failed messages, which come back at once.
func serveOld(url, kindAndQueue string) {
	kind, queue, _ := strings.Cut(kindAndQueue, " ")
	cfg := rig.QueueConfig(url)
	if name, exchange, bound := strings.Cut(queue, "@"); bound {
		queue = name
		rig.OnTopic(exchange, orderKeys)(&cfg)
	}
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
	signal.Notify(term, syscall.SIGTERM)
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
			<-msg.Context().Done() // The ack is sent.
		case <-term:
			_ = sub.Close()
			os.Exit(0)
		}
	}
}

// oldLogger prints a line for each message that watermill-amqp cannot decode.
type oldLogger struct{ watermill.NopLogger }

func (oldLogger) Error(msg string, err error, _ watermill.LogFields) {
	if err != nil && strings.Contains(err.Error(), "is not a string") {
		fmt.Println("undecodable", msg, err)
	}
}

func (l oldLogger) With(watermill.LogFields) watermill.LoggerAdapter { return l }
