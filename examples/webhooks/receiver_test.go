package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/examples/internal/webhook"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

// The sender delivers to the real receiver; only the broker is none.
func TestSenderMeetsReceiver(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		script  script
		outcome string
	}{
		"delivered":     {script{accepted}, "handled after 1 attempt"},
		"400":           {script{{status: 400}}, "dead-lettered (permanent) after 1 attempt"},
		"500":           {script{{status: 500}, accepted}, "handled after 2 attempts, delays 500ms"},
		"503":           {script{{status: 503}}, "dead-lettered (exhausted) after 5 attempts, delays 500ms 1s 2s 4s"},
		"429":           {script{{status: 429, after: 3 * time.Second}, accepted}, "handled after 2 attempts, delays 3s"},
		"429 in little": {script{{status: 500}, {status: 429, after: 1}, accepted}, "handled after 3 attempts, delays 500ms 1s"},
		"429 date":      {script{{status: 429, after: 2 * time.Second, date: true}, accepted}, "handled after 2 attempts, delays 2s"},
		"dropped":       {script{dropped, dropped, accepted}, "handled after 3 attempts, delays 250ms 500ms"},
		"no answer":     {script{hangs, accepted}, "handled after 2 attempts, delays 250ms"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLedger([]planned{{id: "a", script: test.script}})
			r, err := startReceiver(l, func(string) {})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, r.close()) })
			s := webhook.NewSender(lanes)
			t.Cleanup(s.Close)
			payload, err := json.Marshal(webhook.Delivery{ID: "a", URL: r.url + "a"})
			require.NoError(t, err)

			broker := middlewaretest.NewBroker()
			retry, err := webhook.NewRetry(broker)
			require.NoError(t, err)
			msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "webhooks"}, payload)
			result := broker.Run(retry.Middleware(middlewaretest.Consumer(s.Deliver)), msg)
			require.Equal(t, test.outcome, result.String())
		})
	}
}

// What the receiver writes the library reads, in both forms and in the middle of
// a second.
func TestRetryAfterOfReceiver(t *testing.T) {
	t.Parallel()
	for _, date := range []bool{false, true} {
		header := http.Header{}
		setRetryAfter(header, answer{status: 429, after: 2 * time.Second, date: date}, noon.Add(987*time.Millisecond))
		broker := middlewaretest.NewBroker()
		retry, err := webhook.NewRetry(broker)
		require.NoError(t, err)
		busy := middleware.RetryAfterHeader(errors.New("busy"), header, time.Hour)
		msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "webhooks"}, nil)
		_, err = retry.Middleware(middlewaretest.Consumer(func(*message.Message) error { return busy }))(msg)
		require.NoError(t, err)
		require.Equal(t, 2*time.Second, broker.Calls()[0].Delay)
	}
}
