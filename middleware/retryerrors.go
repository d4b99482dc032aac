package middleware

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/internal/excerpt"
)

var (
	// ErrInterrupted is returned by DelayedRetry if the message's context was done or its
	// delivery stale. Nothing was published and no attempt was spent; the message is handled
	// again from its queue. The error also wraps the handler's, if the handler was called.
	ErrInterrupted = errors.New("handling was interrupted")
	// ErrNotHandedOver is returned by DelayedRetry if the Republisher did not confirm for as
	// long as the message could be held. There may be a copy or none. The error also wraps
	// the handler's, if the handler was called.
	ErrNotHandedOver = errors.New("failed message was not handed over")
	// ErrNotDelivered is returned (wrapped) by a Republisher for a message that did not
	// come from its Subscriber, such as a copy: there is no delivery to republish, and
	// another try cannot help.
	ErrNotDelivered = errors.New("message was not delivered by this client's subscriber: make " +
		"the subscriber with the client (Client.NewSubscriber), and pass on the message itself, " +
		"not a copy")
)

// unsettledError says that DelayedRetry could not settle msg. It knows the message, so that an
// outer DelayedRetry does not take it for a failure of the handler.
type unsettledError struct {
	msg     *message.Message
	kind    error // ErrInterrupted or ErrNotHandedOver
	cause   error
	handler error  // nil if the handler was not called
	text    string // of handler, as it is logged
	tries   int    // of the hand-over
	held    time.Duration
}

func (e *unsettledError) Error() string {
	if e.handler == nil {
		return fmt.Sprintf("%v: %v", e.kind, e.cause)
	}
	return fmt.Sprintf("%v: %v; handler: %v", e.kind, e.cause, e.text)
}

func (e *unsettledError) Unwrap() []error {
	if e.handler == nil {
		return []error{e.kind, e.cause}
	}
	return []error{e.handler, e.kind, e.cause}
}

// isUnsettled reports whether err comes from a DelayedRetry that could not settle this message.
func isUnsettled(err error, msg *message.Message) (found bool) {
	_ = contain(func() {
		walk(err, func(err error) bool {
			e, ok := as[*unsettledError](err)
			found = ok && e.msg == msg
			return !found
		})
	})
	return found
}

// PanicError is the failure of a handler that panicked. It is classified like any error: by
// default a panic is retried.
type PanicError struct {
	// Value is the value of the panic.
	Value any
	// Stack is the stack of the handler's goroutine. No error text, header or log line has it,
	// because it may hold secrets.
	Stack []byte
}

// Error returns "panic: " and the value, never the stack.
func (e *PanicError) Error() string { return panicText(e.Value) }

// Unwrap returns the value if it is an error, so that its marks and its identity count.
// Otherwise it returns nil.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

func panicText(value any) string { return fmt.Sprint("panic: ", value) }

// RedactURLs is for WithErrorText. It returns the error's text with the URL of each *url.Error
// cut to scheme and host. net/http quotes the whole URL of a request that failed, also the
// secrets in its path and query.
func RedactURLs(err error) string {
	var urls []string
	walk(err, func(err error) bool {
		if e, ok := as[*url.Error](err); ok && e != nil && e.URL != "" {
			urls = append(urls, e.URL)
		}
		return true
	})
	// The longest first: one URL may begin with another.
	slices.SortFunc(urls, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, u := range urls {
		quoted := strconv.Quote(u) // as *url.Error writes it
		pairs = append(pairs, quoted[1:len(quoted)-1], hostOnly(u), u, hostOnly(u))
	}
	return strings.NewReplacer(pairs...).Replace(errorText(err))
}

// hostOnly returns scheme and host of a URL, or "…" if it has none.
func hostOnly(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return "…"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String()
}

// textOf returns the text of a handler's error for headers and log lines.
func (s *settings) textOf(err error) (text string) {
	if s.errorText == nil {
		return errorText(err)
	}
	if contain(func() { text = s.errorText(err) }) != nil {
		return fmt.Sprintf("%T whose text is not known", err)
	}
	return text
}

// errorText returns the text of err without any stack. The text of a panic is its value, also
// if Watermill's Recoverer caught it.
func errorText(err error) (text string) {
	if value := contain(func() { text = rawText(err) }); value != nil {
		return fmt.Sprintf("%T whose methods panic", err)
	}
	return text
}

func rawText(err error) string {
	text := ""
	walk(err, func(err error) bool {
		// Its Error method prints the stack, and so do the errors that wrap it.
		p, ok := as[wmiddleware.RecoveredPanicError](err)
		if ok {
			text = panicText(p.V)
		}
		return !ok
	})
	if text != "" {
		return text
	}
	return err.Error()
}

// maxLogBytes is the most of an error's text that is logged.
const maxLogBytes = 512

// loggedError is err with the text that it has in the log.
type loggedError struct {
	text string
	err  error
}

func (e *loggedError) Error() string { return e.text }
func (e *loggedError) Unwrap() error { return e.err }

// cutError returns err with the given text, cut.
func cutError(err error, text string) error {
	return &loggedError{text: excerpt.Of(text, maxLogBytes), err: err}
}

func valueText(value any) (text string) {
	if contain(func() { text = fmt.Sprint(value) }) != nil {
		return fmt.Sprintf("%T", value)
	}
	return excerpt.Of(text, maxLogBytes)
}
