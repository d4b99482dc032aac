package topology_test

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

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

// prioritized is a marshaler of a user who needs the priority of a message.
type prioritized struct{ wamqp.DefaultMarshaler }

const priorityMetadata = "priority"

func (m prioritized) Marshal(msg *message.Message) (amqp.Publishing, error) {
	out, err := m.DefaultMarshaler.Marshal(msg)
	if err != nil {
		return out, err
	}
	priority, err := strconv.ParseUint(msg.Metadata.Get(priorityMetadata), 10, 8)
	out.Priority = uint8(priority)
	return out, err
}

func (m prioritized) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	msg, err := m.DefaultMarshaler.Unmarshal(d)
	if err == nil {
		msg.Metadata.Set(priorityMetadata, strconv.Itoa(int(d.Priority)))
	}
	return msg, err
}

func withPriorities(cfg *wamqp.Config) { cfg.Marshaler = prioritized{} }

// seenPriority is the priority that a handler sees, in both ways.
func seenPriority(t testing.TB, msg *message.Message) string {
	raw, ok := topology.Received(msg.Context())
	if seen := msg.Metadata.Get(priorityMetadata); !ok || seen != strconv.Itoa(int(raw.Priority)) {
		t.Errorf("the marshaler saw priority %s, Received says %d (%t)", seen, raw.Priority, ok)
	}
	return strconv.Itoa(int(raw.Priority))
}

// A hundred messages without a priority wait, and messages of priority 9 keep coming
// into the same wait queues. RabbitMQ 4.0 let two of those return for each of the
// others, and none while the first of those had time left (F32).
func TestHighPrioritiesHoldUpNoOthersThatWait(t *testing.T) {
	t.Parallel()
	const normal, delay = 100, 2 * time.Second
	const limit = delay + rig.Ceiling
	for name, strategy := range rig.Strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			failed, back, late := 0, 0, []time.Duration{}
			failedAt := map[string]time.Time{}
			r := rig.Start(t, rig.Config{
				Strategy: strategy(t), Policy: backoff.List{delay}, Configure: withPriorities,
				SubscriberOptions: rig.InFlight(16),
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					body, high := string(msg.Payload), msg.Metadata.Get("kind") == "high"
					want := "0"
					if high {
						want = "9"
					}
					if got := seenPriority(t, msg); got != want {
						t.Errorf("message %s has priority %s at attempt %d", body, got, middleware.Attempt(msg.Context()))
					}
					mu.Lock()
					defer mu.Unlock()
					if middleware.Attempt(msg.Context()) == 1 {
						failedAt[body] = time.Now()
						if !high {
							failed++
						}
						return nil, rig.ErrFailed
					}
					waited := time.Since(failedAt[body])
					if waited < delay-rig.Grace {
						t.Errorf("message %s came back after %v", body, waited)
					}
					if high {
						return nil, rig.ErrFailed // a dead letter
					}
					back++
					if waited > limit {
						late = append(late, waited)
					}
					return nil, nil
				},
			})
			ch := testbroker.Channel(t, r.URL)
			for i := range normal {
				require.NoError(t, ch.Publish("", r.Queue, true, false, amqp.Publishing{Body: []byte(strconv.Itoa(i))}))
			}
			rig.WaitFor(t, "all of them to fail", func() bool { mu.Lock(); defer mu.Unlock(); return failed == normal })
			// More come until all are back, but no longer than would be too late: behind
			// those that came, the others return at last.
			began, high := time.Now(), 0
			rig.WaitFor(t, "all of them to return", func() bool {
				if due := int(time.Since(began) / (100 * time.Millisecond)); high < due && time.Since(began) < 2*limit {
					high++
					if err := ch.Publish("", r.Queue, true, false, amqp.Publishing{
						Priority: 9, Headers: amqp.Table{"kind": "high"}, Body: []byte(fmt.Sprint("high ", high)),
					}); err != nil {
						t.Error(err)
					}
				}
				mu.Lock()
				defer mu.Unlock()
				return back == normal
			})
			require.Equal(t, uint8(9), r.DeadLetter().Priority)
			mu.Lock()
			defer mu.Unlock()
			require.Empty(t, late, "%d of %d came back later than after %v, while %d of priority 9 came", len(late), normal, limit, high)
		})
	}
}

// Every attempt, a dead letter and a delayed message have the priority that the
// message came with first.
func TestPriorityIsTheSameOnEveryAttempt(t *testing.T) {
	t.Parallel()
	for name, strategy := range rig.Strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := make(chan string, 100)
			r := rig.Start(t, rig.Config{
				Strategy: strategy(t), Policy: backoff.Constant{Interval: 50 * time.Millisecond, Retries: 2}, Configure: withPriorities,
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					seen <- seenPriority(t, msg)
					if _, once := msg.Metadata["once"]; once {
						return nil, nil
					}
					return nil, rig.ErrFailed
				},
			})
			cfg := rig.QueueConfig(r.URL)
			withPriorities(&cfg)
			pub, err := r.Client.NewPublisher(cfg)
			require.NoError(t, err)
			for _, priority := range []uint8{0, 1, 4, 5, 9, 255} {
				want := strconv.Itoa(int(priority))
				r.Publish(amqp.Publishing{Priority: priority, Body: []byte("fails")})
				for range 3 {
					require.Equal(t, want, <-seen)
				}
				dead := r.DeadLetter()
				require.Equal(t, priority, dead.Priority)
				require.NotContains(t, dead.Headers, header.Priority)

				msg := rig.DelayedBy(50 * time.Millisecond)
				msg.Metadata.Set(priorityMetadata, want)
				msg.Metadata.Set("once", "")
				require.NoError(t, pub.Publish(r.Queue, msg))
				require.Equal(t, want, <-seen)
			}
			require.LessOrEqual(t, r.Logs.Said("A message of a priority above 4 waits with priority 4"), 1)
		})
	}
}
