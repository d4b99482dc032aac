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
	"sync/atomic"
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

// strategyChange is a change of the strategy on a live queue.
type strategyChange struct {
	name          string
	from, to      topology.Strategy
	arguments     amqp.Table // of the queue
	queue         string
	before, after *rig.Service
	handled       *rig.Ledger
}

// PerQueue changes to Shared under 200 messages a second for a minute.
func TestPerQueueToSharedUnderTraffic(t *testing.T) {
	t.Parallel()
	length := time.Minute
	if testing.Short() {
		length = 5 * time.Second
	}
	changeUnderTraffic(t, 200, length, &strategyChange{
		from: topology.PerQueue{}, to: rig.Shared(t, topology.Quorum),
	})
}

// Each strategy is changed to each other one, all at once; on RabbitMQ 4.3 also to Native and back.
func TestAnyStrategyToAnyOtherUnderTraffic(t *testing.T) {
	t.Parallel()
	kinds := []string{"quorum", "attempt quorum", "shared quorum", "levels quorum", "returning quorum"}
	var changes []*strategyChange
	holds, _ := rig.HoldsRejected(t, testbroker.URL(t))
	for _, kind := range kinds {
		if holds {
			native := native.Strategy{Min: time.Second, Max: 2 * time.Second}
			args := rig.RejectArguments(native.Min, native.Max)
			changes = append(changes, &strategyChange{
				name: kind + " to native", from: rig.Strategies[kind](t), to: native, arguments: args,
			}, &strategyChange{
				name: "native to " + kind, from: native, to: rig.Strategies[kind](t), arguments: args,
			})
		}
	}
	for _, from := range kinds {
		for _, to := range kinds {
			if from != to {
				changes = append(changes, &strategyChange{
					name: from + " to " + to, from: rig.Strategies[from](t), to: rig.Strategies[to](t),
				})
			}
		}
	}
	changeUnderTraffic(t, 15, 6*time.Second, changes...)
}

// Given traffic of which a fifth fails once, when strategies change as in a rolling deploy, then
// every message is handled, and no declaration conflicts. The new instance starts before the old
// one stops.
func changeUnderTraffic(t *testing.T, rate int, length time.Duration, changes ...*strategyChange) {
	t.Helper()
	url := testbroker.URL(t)
	policy := backoff.List{time.Second, 2 * time.Second}
	run := func(c *strategyChange, strategy topology.Strategy) *rig.Service {
		return rig.Start(t, rig.Config{
			URL: url, Queue: c.queue, Strategy: strategy, Policy: policy,
			Configure: func(cfg *wamqp.Config) {
				rig.Prefetch(20)(cfg)
				if c.arguments != nil {
					cfg.Queue.Arguments = c.arguments
				}
			},
			Handle: func(msg *message.Message) error {
				body := string(msg.Payload)
				fails := strings.HasSuffix(body, "3") || strings.HasSuffix(body, "7")
				if fails && middleware.Attempt(msg.Context()) == 1 {
					return rig.ErrFailed
				}
				c.handled.Handle(body)
				return nil
			},
		})
	}
	for _, c := range changes {
		c.queue, c.handled = testbroker.Queue(t), rig.NewLedger()
		c.before = run(c, c.from)
	}

	total := rate * int(length/time.Second)
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.Confirm(false))
	var sent atomic.Int64 // to each of the queues
	published := make(chan error, 1)
	go func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		var confirms []*amqp.DeferredConfirmation
		for i := range total {
			<-tick.C
			for _, c := range changes {
				msg := rig.Named(fmt.Sprint(i))
				confirm, err := ch.PublishWithDeferredConfirm("", c.queue, true, false, msg)
				if err != nil {
					published <- err
					return
				}
				confirms = append(confirms, confirm)
			}
			sent.Store(int64(i + 1))
		}
		for i, confirm := range confirms {
			if !confirm.Wait() {
				published <- fmt.Errorf("publish %d is not confirmed", i)
				return
			}
		}
		published <- nil
	}()

	rig.WaitFor(t, "a third of the traffic", func() bool { return sent.Load() >= int64(total/3) })
	for _, c := range changes {
		c.after = run(c, c.to)
	}
	rig.WaitFor(t, "half of the traffic", func() bool { return sent.Load() >= int64(total/2) })
	var stopped sync.WaitGroup
	for _, c := range changes {
		stopped.Go(c.before.Stop)
	}
	select {
	case err := <-published:
		require.NoError(t, err)
	case <-time.After(length + rig.Patience):
		t.Fatal("the traffic does not end")
	}
	stopped.Wait()
	duplicates := 0
	for _, c := range changes {
		rig.WaitFor(t, "all to be handled: "+c.name, func() bool { return c.handled.Count() == total })
		c.after.Stop()
		for _, s := range []*rig.Service{c.before, c.after} {
			require.NotContains(t, s.Logs.Text(), "PRECONDITION_FAILED", c.name)
		}
		require.Zero(t, c.after.Depth(".dlq"), c.name)
		for _, n := range c.handled.Handled {
			duplicates += n - 1
		}
	}
	t.Logf("%d messages through %d changes, %d duplicates",
		total*len(changes), len(changes), duplicates)
}

// oldQueue tells this test binary to be an old service of TestRolloutAndRollback.
const oldQueue = "MILLPOND_TEST_OLD_QUEUE"

// Given an old consumer with the Subscriber of watermill-amqp, when new ones replace it in the
// documented release order and back, then no message is lost, and no old consumer sees a message
// that it cannot decode (M7).
//
// On a classic queue old and new overlap. On a quorum queue they do not, because watermill-amqp
// cannot decode nacked messages there (F1).
//
// The old one has its own process, because watermill-amqp races with itself at its Close.
func TestRolloutAndRollback(t *testing.T) {
	if queue := os.Getenv(oldQueue); queue != "" {
		serveOld(os.Getenv("AMQP_URL"), queue)
		return
	}
	t.Parallel()
	for name, configure := range map[string]func(*wamqp.Config){
		"classic": func(*wamqp.Config) {}, "quorum": rig.QuorumQueue,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, queue := testbroker.URL(t), testbroker.Queue(t)
			policy := backoff.List{time.Second, 2 * time.Second}
			overlap := name == "classic"
			all := rig.NewLedger()
			// Every tenth message fails its first attempt, in any consumer.
			handle := func(msg *message.Message) error {
				body, first := string(msg.Payload), middleware.Attempt(msg.Context()) == 1
				if strings.HasSuffix(body, "7") && first && all.FailOnce(body) {
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
				for range n {
					rig.Publish(t, url, "", queue, rig.Message(fmt.Sprint("message ", published)))
					published++
				}
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
			rig.WaitFor(t, "the queues to be empty", func() bool {
				return leaving.Depth(".wait.1s")+leaving.Depth(".wait.2s")+leaving.Depth("") == 0
			})
			if !overlap {
				leaving.Stop()
			}
			stopOld = startOld(t, url, queue, name, all)
			leaving.Stop()
			traffic(60)

			rig.WaitFor(t, "all to be handled or dead-lettered", func() bool {
				return all.Count()+max(0, leaving.Depth(".dlq")) >= published
			})
			stopOld()
			require.Zero(t, leaving.Depth(""))
			dead := leaving.Depth(".dlq")
			require.Equal(t, published, all.Count()+dead)
			require.Zero(t, all.Undecodable(), "an old consumer met a message that it cannot decode")
			t.Logf("%d published, %d handled, %d dead-lettered at the end", published, all.Count(), dead)
		})
	}
}

// Given a quorum queue under traffic and a prefetch of ten, when the service leaves as
// docs/adopting.md says, then watermill-amqp reads every message. The publishers pause until no
// message is ready or unacked, the new instance stops, and the old one starts.
func TestLeavingAQuorumQueueUnderTraffic(t *testing.T) {
	t.Parallel()
	url, queue, all := testbroker.URL(t), testbroker.Queue(t), rig.NewLedger()
	leaving := rig.Start(t, rig.Config{
		URL: url, Queue: queue, Policy: backoff.None{},
		Configure: func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.Prefetch(10)(cfg) },
		Handle: func(msg *message.Message) error {
			<-time.After(2 * time.Millisecond) // slower than the traffic, so that messages are prefetched
			if strings.HasSuffix(string(msg.Payload), "7") {
				return rig.ErrFailed
			}
			all.Handle(string(msg.Payload))
			return nil
		},
	})
	var published atomic.Int64
	traffic := func() (pause func()) {
		ch := testbroker.Channel(t, url)
		require.NoError(t, ch.Confirm(false))
		stop, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			for {
				select {
				case <-stop:
					ended <- nil
					return
				default:
				}
				msg := rig.Message(fmt.Sprint("message ", published.Load()))
				confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, msg)
				if err != nil || !confirm.Wait() {
					ended <- fmt.Errorf("publish is not confirmed: %w", err)
					return
				}
				published.Add(1)
			}
		}()
		return func() {
			close(stop)
			require.NoError(t, <-ended)
		}
	}
	settled := func() bool { // handled or dead: neither ready nor unacked
		return int64(all.Count()+max(0, leaving.Depth(".dlq"))) == published.Load()
	}
	pause := traffic()
	rig.WaitFor(t, "traffic for the new one", func() bool { return published.Load() >= 300 })
	pause()
	rig.WaitFor(t, "no message to be ready or unacked", settled)
	leaving.Stop()
	stopOld := startOld(t, url, queue, "quorum", all)
	pause = traffic()
	rig.WaitFor(t, "traffic for the old one", func() bool { return published.Load() >= 600 })
	pause()
	rig.WaitFor(t, "all to be handled or dead-lettered", settled)
	stopOld()
	require.Zero(t, leaving.Depth(""))
	require.Zero(t, all.Undecodable(), "the old consumer met a message that it cannot decode")
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

// startOld starts an old service.
func startOld(t *testing.T, url, queue, kind string, all *rig.Ledger) (stop func()) {
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
