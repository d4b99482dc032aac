package middleware_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

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
				notes := handle(t, h).Notes
				if notes.Error != test.want || notes.History[0].Error != test.want {
					t.Errorf("%s: got %q, %q; want %q", by, notes.Error, notes.History[0].Error, test.want)
				}
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
	handle(t, func(*message.Message) ([]*message.Message, error) { panic(errBoom) }, middleware.WithClassifier(spy))

	var panicked *middleware.PanicError
	if !errors.As(seen, &panicked) || !errors.Is(seen, errBoom) {
		t.Fatalf("classified %v", seen)
	}
	if panicked.Value != errBoom || !strings.Contains(string(panicked.Stack), "TestClassifiersSeeThePanic") {
		t.Errorf("value %v, stack:\n%s", panicked.Value, panicked.Stack)
	}
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
			if call.Notes.Error != test.want || call.Notes.Class != retryable {
				t.Errorf("got %q, %s; want %q, retryable", call.Notes.Error, call.Notes.Class, test.want)
			}
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

// The router hears nothing of a goroutine that ends: without the nack the
// message would hang for ever.
func TestGoexitLeavesTheMessageNacked(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	exits := middleware.ClassifierFunc(func(error) (header.Class, bool) {
		runtime.Goexit()
		return "", false
	})
	for name, h := range map[string]message.HandlerFunc{
		"in the handler": newRetry(t, broker).Middleware(func(*message.Message) ([]*message.Message, error) {
			runtime.Goexit()
			return nil, nil
		}),
		"in a classifier": newRetry(t, broker, middleware.WithClassifier(exits)).Middleware(failsWith(errBoom)),
	} {
		msg := newMessage(middleware.Delivery{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = h(msg)
			t.Errorf("%s: returned", name)
		}()
		<-done
		assert.True(t, isClosed(msg.Nacked()), "%s: message is not nacked", name)
	}
	if calls := broker.Calls(); len(calls) != 0 {
		t.Errorf("published %d times", len(calls))
	}
}
