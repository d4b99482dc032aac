package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

// refusedURL is what net/http returns where nobody listens.
func refusedURL(t *testing.T, rawURL string) error {
	t.Helper()
	_, err := http.Get(rawURL)
	if err == nil {
		t.Fatal("somebody answers")
	}
	return err
}

func TestErrorTextIsThatOfTheOption(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	secret := errors.New("secret")
	var told []string
	call := handle(t, failsWith(secret), middleware.WithLogger(logger), middleware.WithErrorText(func(err error) string {
		if !errors.Is(err, secret) {
			t.Errorf("asked about %v", err)
		}
		return "public"
	}), middleware.WithObserver(middleware.ObserverFunc(func(_ context.Context, e middleware.Event) { told = append(told, e.ErrorText()) })))
	if len(told) != 1 || told[0] != "public" {
		t.Errorf("observers were told %q", told)
	}
	if call.Notes.Error != "public" || call.Notes.History[0].Error != "public" {
		t.Errorf("notes say %q, history %+v", call.Notes.Error, call.Notes.History)
	}
	if text := fmt.Sprint(logger.Captured()); strings.Contains(text, "secret") || !strings.Contains(text, "public") {
		t.Errorf("logged %s", text)
	}
}

func TestErrorTextThatPanics(t *testing.T) {
	t.Parallel()
	call := handle(t, failsWith(errBoom), middleware.WithErrorText(func(error) string { panic("no text") }))
	assert.Equal(t, "*errors.errorString whose text is not known", call.Notes.Error)
}

func TestWithErrorTextRefusesNil(t *testing.T) {
	t.Parallel()
	_, err := middleware.NewDelayedRetry(middlewaretest.NewBroker(), backoff.None{}, middleware.WithErrorText(nil))
	if err == nil || !strings.Contains(err.Error(), "WithErrorText: text is nil") {
		t.Errorf("got %v", err)
	}
}

func TestHostsOnly(t *testing.T) {
	t.Parallel()
	const address = "http://user:pass@127.0.0.1:1/hook/s3cr3t?token=s3cr3t"
	refused := refusedURL(t, address)
	if !strings.Contains(refused.Error(), "s3cr3t") {
		t.Fatalf("net/http does not quote the URL any more: %v", refused)
	}
	var inner *url.Error
	if !errors.As(refused, &inner) {
		t.Fatalf("%T", refused)
	}
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
		if strings.Contains(got, "s3cr3t") {
			t.Errorf("%s: %s", name, got)
		}
		if name != "no URL" && !strings.Contains(got, "127.0.0.1") {
			t.Errorf("%s: the host is gone: %s", name, got)
		}
	}
	assert.Equal(t, "boom", middleware.RedactURLs(errBoom))
}

// What goes back to the router is logged by it.
func TestAnErrorForTheRouterPrintedTheStackOfARecoveredPanic(t *testing.T) {
	t.Parallel()
	down := republishFunc(func(context.Context, *message.Message) error { return middleware.ErrNotDelivered })
	handler := wmiddleware.Recoverer(func(*message.Message) ([]*message.Message, error) { panic(errBoom) })
	for name, retry := range map[string]*middleware.DelayedRetry{
		"as it is":      newRetry(t, down),
		"WithErrorText": newRetry(t, down, middleware.WithErrorText(func(error) string { return "public" })),
	} {
		_, err := retry.Middleware(handler)(newMessage(middleware.Delivery{}))
		wantErrors(t, err, middleware.ErrNotHandedOver)
		if text := err.Error(); strings.Contains(text, "goroutine ") || strings.Contains(text, ".go:") {
			t.Errorf("%s: %s", name, text)
		}
	}
}
