package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// refusedURL is the error of net/http if no process listens.
func refusedURL(t *testing.T, rawURL string) error {
	t.Helper()
	_, err := http.Get(rawURL)
	require.Error(t, err)
	return err
}

func TestErrorTextIsThatOfTheOption(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	secret := errors.New("secret")
	var told []string
	public := middleware.WithErrorText(func(err error) string {
		assert.ErrorIs(t, err, secret)
		return "public"
	})
	observer := middleware.ObserverFunc(func(_ context.Context, e event) {
		told = append(told, e.ErrorText())
	})
	call := handle(t, failsWith(secret), withLogger(logger), public, withObserver(observer))
	require.Len(t, told, 1)
	assert.Equal(t, "public", told[0])
	assert.Equal(t, "public", call.State.Error)
	assert.Equal(t, "public", call.State.History[0].Error)
	text := fmt.Sprint(logger.Captured())
	assert.NotContains(t, text, "secret")
	assert.Contains(t, text, "public")
}

func TestErrorTextThatPanics(t *testing.T) {
	t.Parallel()
	call := handle(
		t, failsWith(errBoom), middleware.WithErrorText(func(error) string { panic("no text") }),
	)
	assert.Equal(t, "*errors.errorString whose text is not known", call.State.Error)
}

func TestRedactURLs(t *testing.T) {
	t.Parallel()
	const address = "http://user:pass@127.0.0.1:1/hook/s3cr3t?token=s3cr3t"
	refused := refusedURL(t, address)
	require.Contains(t, refused.Error(), "s3cr3t")
	var inner *url.Error
	require.True(t, errors.As(refused, &inner))
	for name, err := range map[string]error{
		"plain":      refused,
		"wrapped":    fmt.Errorf("deliver: %w", refused),
		"joined":     errors.Join(errBoom, refused, refusedURL(t, address+"&more=s3cr3t")),
		"panicked":   &middleware.PanicError{Value: refused, Stack: []byte("goroutine 1 s3cr3t")},
		"recovered":  wmiddleware.RecoveredPanicError{V: refused, Stacktrace: "goroutine 1 s3cr3t"},
		"printed":    fmt.Errorf("%w: POST %s", refused, inner.URL),
		"no URL":     &url.Error{Op: "Get", URL: "\x7fs3cr3t://", Err: errBoom},
		"quoted URL": &url.Error{Op: "Get", URL: "http://127.0.0.1/\"s3cr3t\"", Err: errBoom},
	} {
		got := middleware.RedactURLs(err)
		assert.NotContains(t, got, "s3cr3t", name)
		assert.False(t, name != "no URL" && !strings.Contains(got, "127.0.0.1"),
			"%s: the host is gone: %s", name, got)
	}
	assert.Equal(t, "boom", middleware.RedactURLs(errBoom))
}

// What goes back to the router is logged by it.
func TestAnErrorForTheRouterPrintedTheStackOfARecoveredPanic(t *testing.T) {
	t.Parallel()
	down := republishFunc(
		func(context.Context, *message.Message) error { return middleware.ErrNotDelivered },
	)
	handler := wmiddleware.Recoverer(
		func(*message.Message) ([]*message.Message, error) { panic(errBoom) },
	)
	for name, retry := range map[string]*middleware.DelayedRetry{
		"as it is": newRetry(t, down),
		"WithErrorText": newRetry(
			t, down, middleware.WithErrorText(func(error) string { return "public" }),
		),
	} {
		_, err := retry.Middleware(handler)(newMessage(delivery{}))
		wantErrors(t, err, middleware.ErrNotHandedOver)
		assert.NotRegexp(t, `goroutine |\.go:`, err.Error(), name)
	}
}

type badString struct{}

func (badString) String() string { panic("String") }

func TestAPanicIsAFailureWithItsValueOnly(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		value any
		want  string
	}{
		"text":       {"no stock", "panic: no stock"},
		"error":      {errBoom, "panic: boom"},
		"number":     {42, "panic: 42"},
		"nil":        {nil, "panic: " + new(runtime.PanicNilError).Error()},
		"bad string": {badString{}, "panic: %!v(PANIC=String method: String)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			panics := func(*message.Message) ([]*message.Message, error) { panic(test.value) }
			for by, h := range map[string]message.HandlerFunc{
				"millpond":          panics,
				"Recoverer":         wmiddleware.Recoverer(panics),
				"Recoverer, nested": wmiddleware.Recoverer(wmiddleware.Recoverer(panics)),
				"Recoverer, wrapped": func(msg *message.Message) ([]*message.Message, error) {
					_, err := wmiddleware.Recoverer(panics)(msg)
					return nil, fmt.Errorf("wrapped: %w", err)
				},
			} {
				notes := handle(t, h).State
				assert.Equal(t, test.want, notes.Error, by)
				assert.Equal(t, test.want, notes.History[0].Error, by)
			}
		})
	}
}

func TestClassifiersSeeThePanic(t *testing.T) {
	t.Parallel()
	var seen error
	spy := middleware.ClassifierFunc(func(err error) (header.Class, bool) {
		seen = err
		return "", false
	})
	handle(t, func(*message.Message) ([]*message.Message, error) { panic(errBoom) },
		withClassifier(spy))

	var panicked *middleware.PanicError
	require.True(t, errors.As(seen, &panicked))
	require.ErrorIs(t, seen, errBoom)
	assert.Same(t, errBoom, panicked.Value)
	assert.Contains(t, string(panicked.Stack), "TestClassifiersSeeThePanic")
}

func TestErrorsWhoseMethodsPanicAreContained(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"Error":  {badError{}, "middleware_test.badError whose methods panic"},
		"Unwrap": {badUnwrap{}, "middleware_test.badUnwrap whose methods panic"},
		"As":     {badAs{}, "middleware_test.badAs whose methods panic"},
		"Error, marked": {
			middleware.Retryable(badError{}), "*middleware.markedError whose methods panic",
		},
		"nil pointer": {(*nilError)(nil), "*middleware_test.nilError whose methods panic"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call := handle(t, failsWith(test.err))
			assert.Equal(t, test.want, call.State.Error)
			assert.Equal(t, retryable, call.State.Class)
		})
	}
}

type badError struct{}

func (badError) Error() string { panic("Error") }

type badUnwrap struct{}

func (badUnwrap) Error() string { return "bad" }
func (badUnwrap) Unwrap() error { panic("Unwrap") }

type badAs struct{}

func (badAs) Error() string { return "bad" }
func (badAs) As(any) bool   { panic("As") }

type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }
