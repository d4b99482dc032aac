package topology_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// Throttle outside: the retries keep to the rate as well.
func TestComposedWithThrottle(t *testing.T) {
	t.Parallel()
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Policy: rig.Quickly(1), Outer: []message.HandlerMiddleware{wmiddleware.NewThrottle(10, time.Second).Middleware},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			calls.Add()
			if middleware.Attempt(msg.Context()) == 1 {
				return nil, rig.ErrFailed
			}
			return nil, nil
		},
	})
	for range 5 {
		r.Publish(amqp.Publishing{Body: []byte("order")})
	}
	rig.WaitFor(t, "ten calls", func() bool { return calls.Count() == 10 })
	// The first may find a tick waiting.
	require.GreaterOrEqual(t, calls.All()[9], 800*time.Millisecond-rig.Grace)
	r.RequireNothingLeft(0)
}

// An open circuit comes back later and burns no attempt; where it counts as a
// failure, it uses up the retries without a call of the handler.
func TestComposedWithCircuitBreaker(t *testing.T) {
	t.Parallel()
	open := middleware.WithSnoozeFor(500*time.Millisecond, gobreaker.ErrOpenState, gobreaker.ErrTooManyRequests)
	for name, c := range map[string]struct {
		options []middleware.Option
		calls   []int
		dead    int
	}{
		"with WithSnoozeFor":    {[]middleware.Option{open}, []int{1, 2, 3}, 0},
		"without WithSnoozeFor": {nil, []int{1, 2}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			breaker := wmiddleware.NewCircuitBreaker(gobreaker.Settings{
				Timeout:     2 * time.Second,
				ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures == 2 },
			})
			attempts := make(chan int, 10)
			r := rig.Start(t, rig.Config{Policy: rig.Quickly(2), RetryOptions: c.options, Handler: rig.Inside(rig.FailUntil(3, attempts), breaker.Middleware)})
			r.Publish(amqp.Publishing{Body: []byte("order")})
			rig.AwaitAttempts(t, attempts, c.calls...)
			if c.dead == 1 {
				rig.WaitFor(t, "the dead letter", func() bool { return r.Depth(".dlq") == 1 })
			}
			r.RequireNothingLeft(c.dead)
			require.Empty(t, attempts)
		})
	}
}

// All of them in the order of docs/middlewares.md.
func TestComposedInTheRightOrder(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 10)
	errIgnored := errors.New("of no interest")
	h := rig.FailUntil(4, attempts)
	r := rig.Start(t, rig.Config{
		Policy:       rig.Quickly(3),
		RetryOptions: []middleware.Option{middleware.WithSnoozeFor(time.Second, gobreaker.ErrOpenState, gobreaker.ErrTooManyRequests)},
		Outer:        []message.HandlerMiddleware{wmiddleware.CorrelationID, wmiddleware.NewThrottle(1000, time.Second).Middleware},
		Handler: rig.Inside(func(msg *message.Message) ([]*message.Message, error) {
			if _, bounded := msg.Context().Deadline(); !bounded {
				return nil, errors.Join(middleware.Permanent(errors.New("no deadline")), context.Canceled)
			}
			produced, err := h(msg)
			if err == nil {
				panic(errIgnored)
			}
			return produced, err
		},
			deduplicator(middleware.DeduplicationKey),
			wmiddleware.NewIgnoreErrors([]error{errors.New("ignore this one")}).Middleware,
			wmiddleware.NewCircuitBreaker(gobreaker.Settings{}).Middleware,
			wmiddleware.Retry{MaxRetries: 1, InitialInterval: time.Millisecond}.Middleware,
			wmiddleware.Timeout(time.Minute),
			wmiddleware.Recoverer,
		),
	})
	r.Publish(amqp.Publishing{Body: []byte("order"), MessageId: "id-1"})
	dead := r.DeadLetter()
	rig.AwaitAttempts(t, attempts, 1, 1, 2, 2, 3, 3, 4, 4)
	require.Equal(t, "4", dead.Headers[header.DeadFailures])
	require.Contains(t, dead.Headers[header.DeadError], "of no interest")
	require.NotContains(t, r.Logs.Text(), "wrong order")
}
