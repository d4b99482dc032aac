package topology_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// A server answers 429 with Retry-After: 7, though the policy would have waited
// for 1 s: the message comes back after the next longer wait step, 8 s, and with Levels
// after 7 s (C2).
func TestRetryAfterOfAServer(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]time.Duration{"quorum": 8 * time.Second, "levels quorum": 7 * time.Second, "levels classic": 7 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			retryAfter7(t, rig.Strategies[name](t), want)
		})
	}
}

func retryAfter7(t *testing.T, strategy topology.Strategy, want time.Duration) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Query().Get("attempt") == "1" {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	t.Cleanup(server.Close)
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Strategy: strategy,
		Policy:   backoff.List{time.Second, 8 * time.Second, 30 * time.Second},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			resp, err := server.Client().Get(server.URL + "?attempt=" + strconv.Itoa(calls.Add()))
			if err != nil {
				return nil, err
			}
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil, nil
			}
			return nil, middleware.RetryAfterHeader(errors.New(resp.Status), resp.Header, time.Hour)
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("limited")})
	rig.WaitFor(t, "it is handled", func() bool { return calls.Count() == 2 })
	r.Stop()
	calls.RequireGaps(t, want)
}
