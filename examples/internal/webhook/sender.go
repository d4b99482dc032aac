// Package webhook is the consumer that examples share: it delivers webhooks over
// HTTP, and says what becomes of those that fail.
package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// Delivery is the message: what to deliver, and where to.
type Delivery struct {
	ID    string `json:"id"`
	URL   string `json:"url"`
	Event string `json:"event"`
}

// Headers of a request. An Idempotency-Key is not among them: with one, Go's
// client repeats a request by itself when its connection is lost.
const (
	IDHeader      = "Webhook-Id"
	AttemptHeader = "Webhook-Attempt"
	SentHeader    = "Webhook-Sent" // RFC 3339 with nanoseconds
)

// maxRetryAfter bounds what a receiver may ask for: it is somebody else's server.
const maxRetryAfter = time.Hour

// Patience is how long a Sender waits for an answer.
const Patience = 2 * time.Second

// Sender delivers webhooks.
type Sender struct{ client *http.Client }

// NewSender returns a Sender that keeps that many idle connections to a receiver.
func NewSender(idle int) *Sender {
	return &Sender{client: &http.Client{
		Timeout:       Patience,
		Transport:     &http.Transport{MaxIdleConnsPerHost: idle},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close ends the connections that are idle.
func (s *Sender) Close() { s.client.CloseIdleConnections() }

// Deliver is the handler. Its error says what the receiver did.
func (s *Sender) Deliver(msg *message.Message) error {
	var d Delivery
	if err := json.Unmarshal(msg.Payload, &d); err != nil {
		return middleware.Permanent(fmt.Errorf("decode delivery: %w", err))
	}
	req, err := http.NewRequestWithContext(msg.Context(), http.MethodPost, d.URL,
		bytes.NewReader(msg.Payload))
	if err != nil {
		return middleware.Permanent(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(IDHeader, d.ID)
	req.Header.Set(AttemptHeader, strconv.Itoa(middleware.Attempt(msg.Context())))
	req.Header.Set(SentHeader, time.Now().Format(time.RFC3339Nano))
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	// What is read to its end leaves a connection that can be used again.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	return judge(resp.StatusCode, resp.Header)
}

// judge returns what an answer means for the delivery: nil if it was delivered.
func judge(status int, header http.Header) error {
	if status >= 200 && status < 300 {
		return nil
	}
	var err error = &statusError{status}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		err = middleware.RetryAfterHeader(err, header, maxRetryAfter)
	}
	return err
}

// statusError is an answer other than 2xx.
type statusError struct{ status int }

func (e *statusError) Error() string {
	return fmt.Sprintf("receiver answered %d %s", e.status, http.StatusText(e.status))
}

// byStatus is the service's classifier: a receiver that does not want a delivery will not want it
// later; one that is in trouble, or too busy, may. Of other errors it knows nothing.
func byStatus(err error) (header.Class, bool) {
	var answered *statusError
	if !errors.As(err, &answered) {
		return "", false
	}
	switch status := answered.status; {
	case status >= 500,
		status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return header.ClassRetryable, true
	default:
		return header.ClassPermanent, true
	}
}
