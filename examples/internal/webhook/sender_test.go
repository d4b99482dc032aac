package webhook

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

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
		class, known := byStatus(fmt.Errorf("deliver: %w", judge(status, http.Header{})))
		require.True(t, known, status)
		require.Equal(t, want, class, status)
	}
	for _, status := range []int{200, 202, 204} {
		require.NoError(t, judge(status, http.Header{}))
	}
	_, known := byStatus(http.ErrHandlerTimeout)
	require.False(t, known)
}

func TestNobodyListensIsNetworkTrouble(t *testing.T) {
	t.Parallel()
	receiver := httptest.NewServer(nil)
	receiver.Close()
	payload, err := json.Marshal(Delivery{ID: "a", URL: receiver.URL})
	require.NoError(t, err)
	err = NewSender(1).Deliver(message.NewMessage("", payload))
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
		retry, err := NewRetry(broker)
		require.NoError(t, err)
		msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "webhooks"}, []byte(payload))
		result := broker.Run(retry.Middleware(middlewaretest.Consumer(NewSender(1).Deliver)), msg)
		require.Equal(t, "dead-lettered (permanent) after 1 attempt", result.String())
		require.ErrorContains(t, NewSender(1).Deliver(message.NewMessage("", []byte(payload))), says)
	}
}
