package e2e_test

import (
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// stopDuring stops a service, and calls f when its router has begun to close.
func stopDuring(t *testing.T, r *rig.Service, f func()) {
	t.Helper()
	stopped := make(chan struct{})
	go func() { defer close(stopped); r.Stop() }()
	rig.WaitFor(t, "the router to close", func() bool { return r.Logs.Said("Closing router") > 0 })
	f()
	<-stopped
}

// When Close drains, then a failure is still handed over. A message whose handler does not end
// in time goes back to its queue and costs no attempt.
func TestCloseDrains(t *testing.T) {
	t.Parallel()
	t.Run("failure is handed over", func(t *testing.T) {
		t.Parallel()
		handling, finish := make(chan struct{}), make(chan struct{})
		r := rig.Start(t, rig.Config{
			Policy: backoff.List{30 * time.Second},
			Handle: func(*message.Message) error {
				close(handling)
				<-finish
				return rig.ErrFailed
			},
		})
		r.Send("late")
		<-handling
		stopDuring(t, r, func() { close(finish) })
		require.Equal(t, 1, r.Depth(".wait.30s"))
		require.Zero(t, r.Depth(""))
	})
	t.Run("too slow goes back", func(t *testing.T) {
		t.Parallel()
		handling := make(chan struct{})
		r := rig.Start(t, rig.Config{
			Policy:            backoff.List{30 * time.Second},
			SubscriberOptions: []topology.SubscriberOption{topology.WithDrainTimeout(time.Second / 2)},
			Handle: func(msg *message.Message) error {
				close(handling)
				<-msg.Context().Done()
				return msg.Context().Err()
			},
		})
		r.Send("slow")
		<-handling
		r.Stop()
		back := rig.Take(t, r.URL, r.Queue)
		require.Equal(t, "slow", string(back.Body))
		require.NotContains(t, back.Headers, header.Failures)
		require.Zero(t, r.Depth(".wait.30s"))
	})
}

// Given a broker that has stopped answering, then Close ends in time.
func TestCloseReturnsFromAFrozenBroker(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	handling, confirmed := make(chan struct{}), make(chan struct{})
	r := rig.Start(t, rig.Config{
		URL: node.URL(), Queue: "orders", Policy: backoff.List{time.Second},
		ClientOptions:     []topology.Option{topology.WithConfirmTimeout(time.Second)},
		SubscriberOptions: []topology.SubscriberOption{topology.WithDrainTimeout(time.Second)},
		Handle: func(*message.Message) error {
			<-confirmed
			node.Freeze(t)
			close(handling)
			return rig.ErrFailed
		},
	})
	r.Send("stuck")
	close(confirmed)
	<-handling
	begun := time.Now()
	r.Stop()
	require.Less(t, time.Since(begun), 20*time.Second)
	node.Thaw(t)
	require.Equal(t, "stuck", string(rig.Take(t, node.URL(), "orders").Body))
}

// Given a service that is deployed thirty times, each time with one message in progress and the
// others prefetched, then no restart counts. Every third time the service finishes its message,
// otherwise it gives the message back. No message is dead-lettered or lost.
func TestAMonthOfNightlyDeploymentsCountsNothing(t *testing.T) {
	t.Parallel()
	nights := 30
	if testing.Short() {
		nights = 12
	}
	for _, declared := range []string{"default", "8", "3"} {
		t.Run("limit "+declared, func(t *testing.T) {
			t.Parallel()
			s := newNightly(t, declared)
			for night := range nights {
				s.deploy(night%3 == 0)
				s.awaitAll(night + 1)
			}
			finish := make(chan struct{})
			close(finish)
			r, _ := s.run(finish)
			rig.WaitFor(t, "all to be handled or dead", func() bool {
				return s.done.Count()+rig.Ready(t, s.look, s.queue+".dlq") >= nightlyMessages
			})
			r.Stop()
			for _, queue := range []string{s.queue, s.queue + ".wait.1s", s.queue + ".dlq"} {
				require.Zero(t, rig.Ready(t, s.look, queue), queue)
			}
		})
	}
}

const nightlyMessages = 20

// nightly is a service that is deployed every night.
type nightly struct {
	t          *testing.T
	url, queue string
	args       amqp.Table
	look       *amqp.Channel
	done       *rig.Ledger
}

func newNightly(t *testing.T, declared string) *nightly {
	t.Helper()
	s := &nightly{t: t, url: testbroker.URL(t), queue: testbroker.Queue(t), done: rig.NewLedger()}
	version, _ := testbroker.Dial(t, s.url).Properties["version"].(string)
	s.args, _ = rig.DeliveryLimit(t, declared, version)
	rig.RemovePlan(t, s.url, topology.PerQueue{}, s.queue, []time.Duration{time.Second})
	s.look = testbroker.Channel(t, s.url)
	rig.DeclareQueue(t, s.url, s.queue, s.args)
	rig.Fill(t, s.url, s.queue, nightlyMessages)
	return s
}

// run starts the service. Its handlers return when finish is closed or their context ends. begun
// gets a value for each call.
func (s *nightly) run(finish <-chan struct{}) (r *rig.Service, begun <-chan struct{}) {
	s.t.Helper()
	begins := make(chan struct{}, nightlyMessages)
	r = rig.Start(s.t, rig.Config{
		URL: s.url, Queue: s.queue, Keep: true, Policy: backoff.List{time.Second},
		Configure: func(cfg *wamqp.Config) {
			cfg.Queue.Arguments = s.args
			rig.Prefetch(2 * nightlyMessages)(cfg)
		},
		SubscriberOptions: []topology.SubscriberOption{topology.WithDrainTimeout(100 * time.Millisecond)},
		Handle: func(msg *message.Message) error {
			begins <- struct{}{}
			select {
			case <-finish:
				s.done.Handle(string(msg.Payload))
				return nil
			case <-msg.Context().Done():
				return msg.Context().Err()
			}
		},
	})
	return r, begins
}

// deploy starts the service, lets it take all messages, and stops it.
func (s *nightly) deploy(finishes bool) {
	s.t.Helper()
	finish := make(chan struct{})
	r, begun := s.run(finish)
	rig.WaitFor(s.t, "one in progress, the others prefetched", func() bool {
		return len(begun) > 0 && rig.Ready(s.t, s.look, s.queue) == 0
	})
	if finishes {
		stopDuring(s.t, r, func() { close(finish) })
	} else {
		r.Stop()
	}
}

// awaitAll waits until all unhandled messages are back in their queue. Some may wait meanwhile.
func (s *nightly) awaitAll(restarts int) {
	s.t.Helper()
	left := nightlyMessages - s.done.Count()
	var still rig.Stillness
	rig.WaitFor(s.t, "all messages to be back", func() bool {
		if rig.Ready(s.t, s.look, s.queue+".dlq") > 0 {
			dead := rig.Take(s.t, s.url, s.queue+".dlq")
			s.t.Fatalf("after %d restarts message %s was dead-lettered as %v: %v", restarts, dead.Body,
				dead.Headers[header.DeadReason], dead.Headers[header.DeadError])
		}
		back := rig.Ready(s.t, s.look, s.queue)
		if back != left && still.Look(rig.Ready(s.t, s.look, s.queue+".wait.1s") > 0) {
			s.t.Fatalf("after %d restarts %d of %d messages are there", restarts, back, left)
		}
		return back == left
	})
}
