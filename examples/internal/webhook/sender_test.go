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
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

func TestStatusIsClassified(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]header.Class{
		302: header.ClassPermanent,
		400: header.ClassPermanent,
		401: header.ClassPermanent,
		404: header.ClassPermanent,
		408: header.ClassRetryable,
		410: header.ClassPermanent,
		425: header.ClassRetryable,
		429: header.ClassRetryable,
		500: header.ClassRetryable,
		501: header.ClassRetryable,
		503: header.ClassRetryable,
		504: header.ClassRetryable,
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

func TestRefusedConnectionIsNetworkTrouble(t *testing.T) {
	t.Parallel()
	receiver := httptest.NewServer(nil)
	receiver.Close()
	payload, err := json.Marshal(Delivery{ID: "a", URL: receiver.URL})
	require.NoError(t, err)
	err = NewSender(1).Deliver(message.NewMessage("", payload))
	class, known := middleware.NetworkErrors().Classify(err)
	require.True(t, known, err)
	require.Equal(t, header.ClassRetryable, class)
}

func TestUnreadableDeliveryIsPermanent(t *testing.T) {
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
