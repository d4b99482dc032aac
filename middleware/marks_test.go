package middleware_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	backoff4 "github.com/cenkalti/backoff/v4"
	backoff5 "github.com/cenkalti/backoff/v5"
	pkgerrors "github.com/pkg/errors"
	"github.com/stretchr/testify/assert"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

const (
	retryable = header.ClassRetryable
	permanent = header.ClassPermanent
)

func TestMarks(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err   error
		class header.Class
		delay time.Duration // that of the first retry, 1s unless marked
	}{
		"none":                     {errBoom, retryable, time.Second},
		"permanent":                {middleware.Permanent(errBoom), permanent, 0},
		"retryable":                {middleware.Retryable(errBoom), retryable, time.Second},
		"retry after":              {middleware.RetryAfter(errBoom, time.Minute), retryable, time.Minute},
		"retry after less":         {middleware.RetryAfter(errBoom, time.Millisecond), retryable, time.Second},
		"retry after nothing":      {middleware.RetryAfter(errBoom, -time.Minute), retryable, time.Second},
		"retry after for ever":     {middleware.RetryAfter(errBoom, math.MaxInt64), retryable, 315_360_000 * time.Second},
		"through %w":               {fmt.Errorf("order 7: %w", middleware.Permanent(errBoom)), permanent, 0},
		"through two %w":           {fmt.Errorf("%w, %w", errBoom, middleware.Permanent(errBoom)), permanent, 0},
		"through errors.Join":      {errors.Join(errBoom, middleware.Permanent(errBoom)), permanent, 0},
		"through pkg/errors":       {pkgerrors.WithStack(middleware.Permanent(errBoom)), permanent, 0},
		"through a multierror":     {&multierror{errBoom, middleware.Permanent(errBoom)}, permanent, 0},
		"through a chain":          {chain{errBoom, middleware.Permanent(errBoom)}, permanent, 0},
		"through a nested tree":    {fmt.Errorf("a: %w", errors.Join(errBoom, fmt.Errorf("b: %w", middleware.Permanent(errBoom)))), permanent, 0},
		"the outer one wins":       {middleware.Retryable(middleware.Permanent(errBoom)), retryable, time.Second},
		"the outer one wins, too":  {middleware.Permanent(middleware.RetryAfter(errBoom, time.Hour)), permanent, 0},
		"the first joined wins":    {errors.Join(middleware.Retryable(errBoom), middleware.Permanent(errBoom)), retryable, time.Second},
		"depth comes before width": {errors.Join(fmt.Errorf("a: %w", middleware.Permanent(errBoom)), middleware.Retryable(errBoom)), permanent, 0},

		"cenkalti v4 permanent":          {backoff4.Permanent(errBoom), permanent, 0},
		"cenkalti v4 permanent, wrapped": {fmt.Errorf("order 7: %w", backoff4.Permanent(errBoom)), permanent, 0},
		"cenkalti v5 permanent":          {backoff5.Permanent(errBoom), permanent, 0},
		"cenkalti v5 permanent of nil":   {&backoff5.PermanentError{}, permanent, 0},
		"cenkalti v5 retry after":        {errors.Join(errBoom, backoff5.RetryAfter(60)), retryable, time.Minute},
		"cenkalti v5 retry after a past": {backoff5.RetryAfter(-60), retryable, time.Second},
		"ours around theirs":             {middleware.Retryable(backoff5.Permanent(errBoom)), retryable, time.Second},

		"an error that wraps itself": {loop{}, retryable, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call := handle(t, failsWith(test.err))
			if call.Notes.Class != test.class || call.Delay != test.delay {
				t.Errorf("got %s, delay %v; want %s, %v", call.Notes.Class, call.Delay, test.class, test.delay)
			}
		})
	}
}

func TestMarksReadLikeTheErrorTheyMark(t *testing.T) {
	t.Parallel()
	for name, marked := range map[string]error{
		"Permanent":  middleware.Permanent(errBoom),
		"Retryable":  middleware.Retryable(errBoom),
		"RetryAfter": middleware.RetryAfter(errBoom, time.Second),
	} {
		if marked.Error() != "boom" || errors.Unwrap(marked) != errBoom {
			t.Errorf("%s: reads %q, unwraps to %v", name, marked, errors.Unwrap(marked))
		}
	}
	if middleware.Permanent(nil) != nil || middleware.Retryable(nil) != nil || middleware.RetryAfter(nil, 1) != nil {
		t.Error("a mark of nil is not nil")
	}
}

// Watermill's Retry takes cenkalti's mark off, and leaves ours on.
func TestMarksInsideWatermillRetry(t *testing.T) {
	t.Parallel()
	retry := wmiddleware.Retry{InitialInterval: time.Nanosecond}
	for name, test := range map[string]struct {
		err  error
		want header.Class
	}{
		"ours":   {middleware.Permanent(errBoom), permanent},
		"theirs": {backoff5.Permanent(errBoom), retryable},
	} {
		assert.Equal(t, test.want, handle(t, retry.Middleware(failsWith(test.err))).Notes.Class, name)
	}
}

func TestMarksThroughAPanic(t *testing.T) {
	t.Parallel()
	panics := func(*message.Message) ([]*message.Message, error) { panic(middleware.Permanent(errBoom)) }
	for name, h := range map[string]message.HandlerFunc{
		"caught here":         panics,
		"caught by Recoverer": wmiddleware.Recoverer(panics),
	} {
		assert.Equal(t, permanent, handle(t, h).Notes.Class, name)
	}
}

// multierror is built like hashicorp's: Unwrap leads to a chain that only its
// own As and Is can see into.
type multierror []error

func (m *multierror) Error() string          { return "several" }
func (m *multierror) WrappedErrors() []error { return *m }
func (m *multierror) Unwrap() error          { return chain(*m) }

type chain []error

func (c chain) Error() string        { return c[0].Error() }
func (c chain) As(target any) bool   { return errors.As(c[0], target) }
func (c chain) Is(target error) bool { return errors.Is(c[0], target) }
func (c chain) Unwrap() error {
	if len(c) == 1 {
		return nil
	}
	return c[1:]
}

type loop struct{}

func (loop) Error() string { return "loop" }
func (loop) Unwrap() error { return loop{} }
