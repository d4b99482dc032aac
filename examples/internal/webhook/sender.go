// Package webhook is the consumer of two examples. It delivers webhooks over HTTP, and decides when
// a failed delivery is tried again.
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

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// Delivery is the message: an event and the address of its receiver.
type Delivery struct {
	ID    string `json:"id"`
	URL   string `json:"url"`
	Event string `json:"event"`
}

// Headers of a request. There is no Idempotency-Key: with one, Go's client repeats a request by
// itself when its connection is lost.
const (
	IDHeader      = "Webhook-Id"
	AttemptHeader = "Webhook-Attempt"
	SentHeader    = "Webhook-Sent" // RFC 3339 with nanoseconds
)

// maxRetryAfter bounds the delay that a receiver may ask for, because it is a foreign server.
const maxRetryAfter = time.Hour

// Patience is the time that a Sender waits for an answer.
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

// Deliver handles a message. Its error has the receiver's answer.
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
	// A connection can be used again only if its response was read to the end.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	return judge(resp.StatusCode, resp.Header)
}

// judge returns the delivery's error: nil if it was delivered.
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

// byStatus classifies the answers of a receiver. A receiver that refuses a delivery will refuse it
// later, too; a receiver in trouble may accept it later. It does not know other errors.
func byStatus(err error) (header.Class, bool) {
	var answered *statusError
	if !errors.As(err, &answered) {
		return "", false
	}
	switch status := answered.status; {
	case status >= 500, status == http.StatusRequestTimeout,
		status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return header.ClassRetryable, true
	default:
		return header.ClassPermanent, true
	}
}

var (
	// Policy waits after a refusal, because a receiver in trouble needs time.
	Policy = backoff.List{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second}
	// NetworkPolicy waits after a broken connection or a missing answer.
	NetworkPolicy = backoff.List{
		250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second,
	}
	// RetryAfters are delays that receivers ask for. With a wait queue for each, no delivery waits
	// longer than its receiver asks.
	RetryAfters = backoff.List{time.Second, 2 * time.Second, 3 * time.Second}
)

// MaxAttempts is the number of times that a delivery is tried.
const MaxAttempts = 5

// NewRetry returns the middleware: byStatus decides whether a failed delivery is tried again, and
// the policies decide when.
func NewRetry(republisher middleware.Republisher, options ...middleware.Option,
) (*middleware.DelayedRetry, error) {
	return middleware.NewDelayedRetry(republisher, Policy, append([]middleware.Option{
		middleware.WithPolicyFor(middleware.Selector{Error: middleware.NetworkErrors()}, NetworkPolicy),
		middleware.WithClassifier(middleware.ClassifierFunc(byStatus)),
		middleware.WithMaxAttempts(MaxAttempts),
	}, options...)...)
}
