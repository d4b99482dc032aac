package e2e_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Given messages in progress, waiting, published with a delay, and ready, when the broker restarts,
// then all are handled, none comes early, and it costs no attempt. Publishing works again. The wait
// in quorum queues ends while the broker is away. Classic ones do not survive that (F23), so their
// messages wait for longer, and are still there. All strategies share the broker, because each
// start takes seconds.
func TestBrokerRestartLosesNothing(t *testing.T) {
	t.Parallel()
	node, down := testbroker.Private(t, rig.QuickDeadLettering), make(chan struct{})
	type handled struct {
		body    string
		attempt int
	}
	type service struct {
		*rig.Service
		pub      *topology.Publisher
		delay    time.Duration
		handling chan struct{} // gets a value when the message is in progress
		done     chan handled
	}
	services := map[string]*service{}
	for _, name := range []string{
		"quorum", "classic", "attempt quorum", "shared quorum", "levels quorum", "returning quorum",
	} {
		s := &service{
			delay: 3 * time.Second, handling: make(chan struct{}, 10), done: make(chan handled, 100),
		}
		if name == "classic" {
			s.delay = time.Hour
		}
		s.Service = rig.Start(t, rig.Config{
			URL: node.URL(), Strategy: rig.Strategies[name](t), Configure: rig.QuorumQueue,
			Queue: "orders " + name, Policy: backoff.List{s.delay},
			ClientOptions: []topology.Option{topology.WithConfirmTimeout(2 * time.Second)},
			Handle: func(msg *message.Message) error {
				call := handled{string(msg.Payload), middleware.Attempt(msg.Context())}
				sent, err := time.Parse(time.RFC3339Nano, msg.Metadata.Get("sent"))
				switch {
				case call == handled{"waiting", 1}:
					return rig.ErrFailed
				case call.body == "in progress":
					select {
					case <-down: // the redelivery
					default:
						s.handling <- struct{}{}
						<-down
						return rig.ErrFailed
					}
				case call.body == "later" && (err != nil || time.Since(sent) < s.delay-rig.Grace):
					t.Errorf("%s: a message that was published with a delay came early", name)
				}
				s.done <- call
				return nil
			},
		})
		s.pub = rig.NewPublisher(t, s.Client, node.URL(), topology.WithDelays(s.delay))
		services[name] = s
	}
	for name, s := range services {
		later := rig.DelayedBy(s.delay)
		later.Metadata.Set("sent", time.Now().Format(time.RFC3339Nano))
		require.NoError(t, s.pub.Publish(s.Queue, later))
		s.Send("waiting")
		rig.WaitFor(t, name+": the message to wait", func() bool {
			return s.Logs.Said(willBeRetried) == 1
		})
		s.Send("in progress", "ready")
		rig.Await(t, s.handling)
	}
	node.Stop(t)
	close(down)
	node.Start(t)
	for name, s := range services {
		rig.WaitFor(t, "publishing to work again with "+name, func() bool {
			return s.pub.Publish(s.Queue, message.NewMessage("id", []byte("again"))) == nil
		})
		want := map[handled]int{{"in progress", 1}: 1, {"ready", 1}: 1}
		if name != "classic" {
			want[handled{"waiting", 2}], want[handled{"later", 1}] = 1, 1
		}
		got, again := map[handled]int{}, handled{"again", 1}
		for len(got) <= len(want) {
			got[rig.Await(t, s.done)]++
		}
		delete(got, again) // more than once, if it was published when the broker came back
		require.Equal(t, want, got, name)
		if name == "classic" {
			require.Equal(t, 2, s.Waiting())
		}
		s.RequireNothingLeft(0)
	}
}
