package topology_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// A wait queue deleted while it is empty is declared again and used; the DLQ
// likewise (T6).
func TestVanishedQueuesAreDeclaredAgain(t *testing.T) {
	t.Parallel()
	for name, strategy := range rig.Strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, queue := testbroker.URL(t), testbroker.Queue(t)
			ch := testbroker.Channel(t, url)
			strategy := strategy(t)
			plan, err := strategy.Plan(queue, []time.Duration{time.Second})
			require.NoError(t, err)
			var mu sync.Mutex
			var ended time.Time
			var waited []time.Duration
			r := rig.Start(t, rig.Config{
				URL: url, Queue: queue, Strategy: strategy,
				Policy: backoff.List{time.Second, time.Second},
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					mu.Lock()
					defer mu.Unlock()
					if !ended.IsZero() {
						waited = append(waited, time.Since(ended))
					}
					for _, e := range plan.Exchanges {
						if err := ch.ExchangeDelete(e.Name, false, false); err != nil {
							t.Error(err)
						}
					}
					for _, q := range plan.Queues {
						if _, err := ch.QueueDelete(q.Name, false, false, false); err != nil {
							t.Error(err)
						}
					}
					ended = time.Now()
					return nil, rig.ErrFailed
				},
			})
			r.Publish(amqp.Publishing{Body: []byte("here")})
			dead := rig.Take(t, url, plan.Dead.RoutingKey)
			require.Equal(t, "here", string(dead.Body), dead.Headers)
			// From the end of the handler, whose own deletions take a busy broker seconds.
			mu.Lock()
			defer mu.Unlock()
			require.Len(t, waited, 2)
			for _, d := range waited {
				require.GreaterOrEqual(t, d, time.Second-rig.Grace)
				require.LessOrEqual(t, d, time.Second+rig.Ceiling)
			}
			t.Logf("waited %v", waited)
			// The wait queue or its exchange twice, and the dead-letter queue.
			lines := r.Logs.Saying("A part of the plan had vanished and was declared again")
			require.Len(t, lines, 3)
			require.Regexp(t, "^error ", lines[0])
			require.Contains(t, lines[2], fmt.Sprintf("vanished:queue %q", plan.Dead.RoutingKey))
		})
	}
}

// A delivery that the marshaler refuses is dead-lettered untouched, and does not
// hold up the next (C7).
func TestUndecodableIsDeadLettered(t *testing.T) {
	t.Parallel()
	handled := make(chan string, 10)
	r := rig.Start(t, rig.Config{
		Policy:    backoff.List{time.Second},
		Configure: rig.Picky,
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			handled <- string(msg.Payload)
			return nil, nil
		},
	})
	for _, body := range []string{"refuse", "loud", "panic", "nothing", "fine"} {
		sent := foreign()
		sent.Body = []byte(body)
		r.Publish(sent)
	}
	require.Equal(t, "fine", <-handled)
	for _, body := range []string{"refuse", "loud", "panic", "nothing"} {
		dead := r.DeadLetter()
		sent := foreign()
		sent.Body = []byte(body)
		requireSame(t, sent, dead)
		require.Equal(t, "undecodable", dead.Headers[header.DeadReason])
		require.Equal(t, "0", dead.Headers[header.DeadFailures])
	}
	require.Equal(t, 1, strings.Count(r.Logs.Text(), "marshaler panicked"))
	require.Less(t, len(r.Logs.Text()), 10_000, "errors are cut")
}

// An error text of 1 MB, one that is not UTF-8, and a long history: dead-lettered,
// readable, no connection harmed.
func TestHugeErrorTextHarmsNothing(t *testing.T) {
	t.Parallel()
	huge := errors.New(strings.Repeat("\xff\xfe€", 250_000))
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Policy: backoff.Constant{Interval: time.Millisecond, Retries: 100},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			calls.Add()
			return nil, huge
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("loud")})
	for range 20 { // looking at it does it no harm
		ch := testbroker.Channel(t, r.URL)
		rig.WaitFor(t, "the dead letter", func() bool {
			d, ok, err := ch.Get(r.Queue+".dlq", false)
			require.NoError(t, err)
			if ok {
				require.NoError(t, d.Nack(false, true))
			}
			return ok
		})
	}
	dead := r.DeadLetter()
	text, _ := dead.Headers[header.DeadError].(string)
	require.Contains(t, text, "(cut, 1250000 bytes)")
	require.LessOrEqual(t, len(text), header.MaxErrorBytes)
	require.Equal(t, "101", dead.Headers[header.DeadFailures])
	require.NotContains(t, r.Logs.Text(), "lost, reconnecting")
	require.Equal(t, 101, calls.Count())
}

// A delay longer than every wait step waits in rounds that cost no attempt (P7), one
// between two wait steps takes the longer.
func TestDelayWithoutARung(t *testing.T) {
	t.Parallel()
	var calls rig.Timeline
	attempts := make(chan int, 10)
	r := rig.Start(t, rig.Config{
		Strategy: topology.PerQueue{WaitSteps: []time.Duration{200 * time.Millisecond, time.Second}},
		Policy: backoff.Limit{Retries: 2, Policy: backoff.PolicyFunc(func(f backoff.Failure) (time.Duration, bool) {
			return []time.Duration{0, 3500 * time.Millisecond, 300 * time.Millisecond}[f.Count], true
		})},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			calls.Add()
			attempts <- middleware.Attempt(msg.Context())
			return nil, rig.ErrFailed
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("far")})
	r.DeadLetter()
	const negligible = 50 * time.Millisecond // of the last round
	calls.RequireGaps(t, 3500*time.Millisecond-negligible, time.Second)
	require.Equal(t, []int{1, 2, 3}, []int{<-attempts, <-attempts, <-attempts})
}
