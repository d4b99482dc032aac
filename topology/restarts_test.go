package topology_test

import (
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// A service is stopped in good order and started again thirty times. Each time it has one message
// in progress, which it finishes every third time and gives back otherwise, and the others are
// prefetched. No restart counts: nothing is dead-lettered or lost, and all are handled in the end.
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
			rig.WaitFor(t, "all are handled, or dead", func() bool {
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
	conn := testbroker.Dial(t, s.url)
	version, _ := conn.Properties["version"].(string)
	s.args, _ = rig.DeliveryLimit(t, declared, version)
	rig.RemovePlan(t, s.url, topology.PerQueue{}, s.queue, []time.Duration{time.Second})
	var err error
	s.look, err = conn.Channel()
	require.NoError(t, err)
	_, err = s.look.QueueDeclare(s.queue, true, false, false, false, s.args)
	require.NoError(t, err)
	rig.Fill(t, s.url, s.queue, nightlyMessages)
	return s
}

// run starts the service. Its handlers return when finish is closed, or when they are interrupted;
// begun tells of each.
func (s *nightly) run(finish <-chan struct{}) (r *rig.Service, begun <-chan struct{}) {
	s.t.Helper()
	begins := make(chan struct{}, nightlyMessages)
	r = rig.Start(s.t, rig.Config{
		URL: s.url, Queue: s.queue, Keep: true, Policy: backoff.List{time.Second},
		Configure: func(cfg *wamqp.Config) {
			cfg.Queue.Arguments = s.args
			cfg.Consume.Qos.PrefetchCount = 2 * nightlyMessages
		},
		SubscriberOptions: []topology.SubscriberOption{topology.WithDrainTimeout(100 * time.Millisecond)},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			begins <- struct{}{}
			select {
			case <-finish:
				s.done.Handle(string(msg.Payload))
				return nil, nil
			case <-msg.Context().Done():
				return nil, msg.Context().Err()
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
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.Stop()
	}()
	if finishes {
		rig.WaitFor(s.t, "the router closes", func() bool {
			return r.Logs.Said("Closing router") > 0
		})
		close(finish)
	}
	<-stopped
}

// awaitAll waits until all messages that are not handled are back, some of which may wait.
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
