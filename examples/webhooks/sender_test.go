package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

func TestStatusIsClassified(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]middleware.Class{
		302: middleware.ClassPermanent,
		400: middleware.ClassPermanent,
		401: middleware.ClassPermanent,
		404: middleware.ClassPermanent,
		408: middleware.ClassRetryable,
		410: middleware.ClassPermanent,
		425: middleware.ClassRetryable,
		429: middleware.ClassRetryable,
		500: middleware.ClassRetryable,
		501: middleware.ClassRetryable,
		503: middleware.ClassRetryable,
		504: middleware.ClassRetryable,
	} {
		class, known := byStatus(fmt.Errorf("deliver: %w", judge(status, http.Header{}, noon)))
		require.True(t, known, status)
		require.Equal(t, want, class, status)
	}
	for _, status := range []int{200, 202, 204} {
		require.NoError(t, judge(status, http.Header{}, noon))
	}
	_, known := byStatus(http.ErrHandlerTimeout)
	require.False(t, known)
}

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
			s := newSender()
			t.Cleanup(s.client.CloseIdleConnections)
			payload, err := json.Marshal(delivery{ID: "a", URL: r.url + "a"})
			require.NoError(t, err)

			broker := middlewaretest.NewBroker()
			retry, err := newRetry(broker, watermill.NopLogger{})
			require.NoError(t, err)
			msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "webhooks"}, payload)
			result := broker.Run(retry.Middleware(middlewaretest.Consumer(s.deliver)), msg)
			require.Equal(t, test.outcome, result.String())
		})
	}
}

func TestNobodyListensIsNetworkTrouble(t *testing.T) {
	t.Parallel()
	r, err := startReceiver(newLedger(nil), func(string) {})
	require.NoError(t, err)
	require.NoError(t, r.close())
	payload, err := json.Marshal(delivery{ID: "a", URL: r.url})
	require.NoError(t, err)
	err = newSender().deliver(message.NewMessage("", payload))
	class, known := middleware.NetworkErrors().Classify(err)
	require.True(t, known, err)
	require.Equal(t, middleware.ClassRetryable, class)
}

func TestWhatIsNoDeliveryIsPermanent(t *testing.T) {
	t.Parallel()
	for payload, says := range map[string]string{
		"{":                  "decode delivery: unexpected end of JSON input",
		`{"url":"http://["}`: `parse "http://[": missing ']' in host`,
	} {
		broker := middlewaretest.NewBroker()
		retry, err := newRetry(broker, watermill.NopLogger{})
		require.NoError(t, err)
		msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "webhooks"}, []byte(payload))
		result := broker.Run(retry.Middleware(middlewaretest.Consumer(newSender().deliver)), msg)
		require.Equal(t, "dead-lettered (permanent) after 1 attempt", result.String())
		require.ErrorContains(t, newSender().deliver(message.NewMessage("", []byte(payload))), says)
	}
}
