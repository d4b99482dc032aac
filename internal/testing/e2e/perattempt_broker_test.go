package e2e_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// More failures than queues, and a delay that only an error asks for: no queue of
// no attempt, and nobody comes early.
func TestPerAttemptBeyondItsQueues(t *testing.T) {
	t.Parallel()
	var calls rig.Timeline
	var mu sync.Mutex
	var waited []string
	r := rig.Start(t, rig.Config{
		Strategy: topology.PerAttempt{Delays: []time.Duration{100 * time.Millisecond, 100 * time.Millisecond}},
		Policy:   backoff.Constant{Interval: 100 * time.Millisecond, Retries: 4},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			raw, _ := topology.Received(msg.Context())
			if calls.Add() > 1 {
				mu.Lock()
				name := raw.Headers["x-first-death-queue"].(string)
				waited = append(waited, name[strings.LastIndex(name, ".retry.")+1:])
				mu.Unlock()
			}
			if middleware.Attempt(msg.Context()) == 4 {
				return nil, middleware.RetryAfter(rig.ErrFailed, 2500*time.Millisecond)
			}
			return nil, rig.ErrFailed
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("order 1")})
	dead := r.DeadLetter()
	require.Equal(t, "5", dead.Headers[header.DeadFailures])
	const ms = time.Millisecond
	calls.RequireGaps(t, 100*ms, 100*ms, 100*ms, 2450*ms) // a remainder of a round may be left out
	require.Equal(t, []string{"retry.1.100ms", "retry.2.100ms", "retry.2.100ms", "retry.0.1s"}, waited)
	require.Equal(t, -1, r.Depth(".retry.3.100ms"))
}
