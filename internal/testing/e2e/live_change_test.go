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

	"github.com/millpond-go/millpond"
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

// oldQueue tells this test binary to be an old service of TestRolloutBesideOldInstances.
const oldQueue = "MILLPOND_TEST_OLD_QUEUE"

// shop is a queue whose messages old and new instances handle.
type shop struct {
	t              *testing.T
	url, queue     string
	kind           string // of the queue, and "text" in front if old instances have the marshaler
	configure      func(*wamqp.Config)
	published      int
	handled, tried *rig.Calls
}

func openShop(t *testing.T, kind string) *shop {
	t.Helper()
	s := &shop{
		t: t, url: testbroker.URL(t), queue: testbroker.Queue(t), kind: kind,
		configure: rig.Prefetch(10), handled: rig.NewCalls(), tried: rig.NewCalls(),
	}
	if strings.HasSuffix(kind, "quorum") {
		s.configure = func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.Prefetch(10)(cfg) }
	}
	cfg := rig.QueueConfig(s.url)
	s.configure(&cfg)
	rig.DeclareQueue(t, s.url, s.queue, cfg.Queue.Arguments)
	return s
}

// handle fails the first attempt at every tenth message, in any consumer.
func (s *shop) handle(msg *message.Message) error {
	body := string(msg.Payload)
	s.tried.Handle(body)
	if strings.HasSuffix(body, "7") && s.tried.Of(body) == 1 {
		return rig.ErrFailed
	}
	s.handled.Handle(body)
	return nil
}

// serve starts a new instance.
func (s *shop) serve(
	policy backoff.Policy, options ...topology.SubscriberOption,
) *rig.Service {
	return rig.Start(s.t, rig.Config{
		URL: s.url, Queue: s.queue, Policy: policy, Configure: s.configure, Handle: s.handle,
		SubscriberOptions: options,
	})
}

func (s *shop) traffic() {
	messages := make([]amqp.Publishing, 60)
	for i := range messages {
		messages[i] = rig.Message(fmt.Sprint("message ", s.published))
		s.published++
	}
	rig.Post(s.t, s.url, s.queue, messages...)
}

// Given old consumers with the Subscriber of watermill-amqp whose configuration has the
// RolloutMarshaler, when new ones run beside them, alone, and beside them again, on a classic or a
// quorum queue, with failures in all of them, then every message is handled, and no old consumer
// logs an error.
//
// The old one has its own process, because watermill-amqp races with itself at its Close.
func TestRolloutBesideOldInstances(t *testing.T) {
	if queue := os.Getenv(oldQueue); queue != "" {
		serveOld(os.Getenv("AMQP_URL"), queue)
		return
	}
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, "text "+kind)
			stopOld := startOld(t, s.url, s.queue, s.kind, s.handled)
			s.traffic()
			service := s.serve(backoff.List{time.Second, 2 * time.Second}, topology.WithOldInstances())
			s.traffic()
			stopOld()
			s.traffic()
			stopOld = startOld(t, s.url, s.queue, s.kind, s.handled)
			s.traffic()
			service.Stop()
			s.traffic()
			rig.WaitFor(t, "all to be handled", func() bool { return s.handled.Count() == s.published })
			stopOld()
			require.Zero(t, service.Depth(""))
			require.Zero(t, service.Depth(".dlq"))
		})
	}
}

// Given two such old consumers on a quorum queue, when a message fails in each of them, again and
// again, then the new one beside them neither sets it aside nor dead-letters it as a message that
// ends its process: it retries the message.
func TestAMessageThatFailsInOldInstances(t *testing.T) {
	t.Parallel()
	s := openShop(t, "text quorum")
	startOld(t, s.url, s.queue, s.kind, s.handled)
	startOld(t, s.url, s.queue, s.kind, s.handled)
	service := rig.Start(t, rig.Config{
		URL: s.url, Queue: s.queue, Policy: often(10 * time.Millisecond), Configure: s.configure,
		SubscriberOptions: []topology.SubscriberOption{topology.WithOldInstances()},
		Handle: func(msg *message.Message) error {
			if s.tried.Handle(stubborn); middleware.Attempt(msg.Context()) < 20 {
				return rig.ErrFailed
			}
			s.handled.Handle(stubborn)
			return nil
		},
	})
	rig.Post(t, s.url, s.queue, rig.Message(stubborn))
	rig.WaitFor(t, "the message to be handled", func() bool { return s.handled.Of(stubborn) == 1 })
	require.Equal(t, 20, s.tried.Of(stubborn))
	require.Zero(t, service.Depth(".dlq"))
	require.Zero(t, service.Logs.Said("ended repeatedly"))
}

// stubborn is the body of a message that old instances never handle.
const stubborn = "stubborn"

// Given an old consumer without that marshaler on a classic queue, when new ones replace it in the
// release order for that, and back, then no message is lost, and no old consumer sees a message
// that it cannot decode (M7).
func TestRolloutAndRollback(t *testing.T) {
	t.Parallel()
	s, policy := openShop(t, "classic"), backoff.List{time.Second, 2 * time.Second}
	stopOld := startOld(t, s.url, s.queue, s.kind, s.handled)
	s.traffic()
	// Release 1: the Subscriber without the middleware. It requeues nacked messages.
	cfg := rig.QueueConfig(s.url)
	stopSubscriberOnly := plainRouter(t, cfg, s.queue, s.handle)
	s.traffic()
	stopOld()
	// Release 2: the middleware.
	retrying := s.serve(policy)
	s.traffic()
	stopSubscriberOnly()
	s.traffic()
	// Leaving: stop retrying, drain, then remove the subscriber.
	leaving := s.serve(backoff.None{})
	retrying.Stop()
	s.traffic()
	settled := func() bool { // handled or dead: neither ready, unacked nor waiting
		return s.handled.Count()+max(0, leaving.Depth(".dlq")) >= s.published
	}
	rig.WaitFor(t, "the queues to be empty", settled)
	stopOld = startOld(t, s.url, s.queue, s.kind, s.handled)
	leaving.Stop()
	s.traffic()
	rig.WaitFor(t, "all to be handled or dead-lettered", settled)
	stopOld()
	require.Zero(t, leaving.Depth(""))
	require.Equal(t, s.published, s.handled.Count()+leaving.Depth(".dlq"))
}

// plainRouter runs a router on a Subscriber of the client without the middleware.
func plainRouter(
	t *testing.T, cfg wamqp.Config, queue string, handle func(*message.Message) error,
) (stop func()) {
	t.Helper()
	client, err := topology.Open(t.Context(), cfg.Connection, topology.PerQueue{})
	require.NoError(t, err)
	policy := backoff.List{time.Second}
	sub, err := client.NewSubscriberWithoutRetry(cfg, topology.WithOldInstances(),
		topology.ForPolicy(policy))
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
	child := exec.Command(os.Args[0], "-test.run=^TestRolloutBesideOldInstances$")
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
			if strings.HasPrefix(lines.Text(), "error") {
				t.Error("an old consumer logs:", lines.Text())
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
	kindAndQueue, text := strings.CutPrefix(kindAndQueue, "text ")
	kind, queue, _ := strings.Cut(kindAndQueue, " ")
	cfg := rig.QueueConfig(url)
	if text {
		cfg.Marshaler = millpond.RolloutMarshaler(cfg.Marshaler)
	}
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
			if strings.HasSuffix(body, "7") && !failed[body] && (kind == "classic" || text) ||
				body == stubborn {
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

// oldLogger prints errors.
type oldLogger struct{ watermill.NopLogger }

func (oldLogger) Error(msg string, err error, _ watermill.LogFields) {
	fmt.Println("error", msg, err)
}

func (l oldLogger) With(watermill.LogFields) watermill.LoggerAdapter { return l }
