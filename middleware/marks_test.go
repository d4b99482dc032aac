package middleware_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	backoff4 "github.com/cenkalti/backoff/v4"
	backoff5 "github.com/cenkalti/backoff/v5"
	pkgerrors "github.com/pkg/errors"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

const (
	retryable = header.ClassRetryable
	permanent = header.ClassPermanent
)

func TestMarks(t *testing.T) {
	t.Parallel()
	closed := middleware.Snooze(errBoom, time.Minute)
	for name, test := range map[string]struct {
		err   error
		class header.Class
		delay time.Duration // of the first retry, 1s unless marked
	}{
		"none":                {errBoom, retryable, time.Second},
		"permanent":           {middleware.Permanent(errBoom), permanent, 0},
		"retryable":           {middleware.Retryable(errBoom), retryable, time.Second},
		"retry after":         {middleware.RetryAfter(errBoom, time.Minute), retryable, time.Minute},
		"retry after less":    {middleware.RetryAfter(errBoom, time.Millisecond), retryable, time.Second},
		"retry after nothing": {middleware.RetryAfter(errBoom, -time.Minute), retryable, time.Second},
		"retry after for ever": {
			middleware.RetryAfter(errBoom, math.MaxInt64), retryable, 315_360_000 * time.Second,
		},
		"through %w": {fmt.Errorf("order 7: %w", middleware.Permanent(errBoom)), permanent, 0},
		"through two %w": {
			fmt.Errorf("%w, %w", errBoom, middleware.Permanent(errBoom)), permanent, 0,
		},
		"through errors.Join":  {errors.Join(errBoom, middleware.Permanent(errBoom)), permanent, 0},
		"through pkg/errors":   {pkgerrors.WithStack(middleware.Permanent(errBoom)), permanent, 0},
		"through a multierror": {&multierror{errBoom, middleware.Permanent(errBoom)}, permanent, 0},
		"through a chain":      {chain{errBoom, middleware.Permanent(errBoom)}, permanent, 0},
		"through a nested tree": {
			fmt.Errorf("a: %w", errors.Join(errBoom, fmt.Errorf("b: %w", middleware.Permanent(errBoom)))),
			permanent, 0,
		},
		"the outer one wins": {
			middleware.Retryable(middleware.Permanent(errBoom)), retryable, time.Second,
		},
		"the outer one wins, too": {
			middleware.Permanent(middleware.RetryAfter(errBoom, time.Hour)), permanent, 0,
		},
		"the first joined wins": {
			errors.Join(middleware.Retryable(errBoom), middleware.Permanent(errBoom)), retryable,
			time.Second,
		},
		"depth comes before width": {
			errors.Join(fmt.Errorf("a: %w", middleware.Permanent(errBoom)), middleware.Retryable(errBoom)),
			permanent, 0,
		},

		"cenkalti v4 permanent": {backoff4.Permanent(errBoom), permanent, 0},
		"cenkalti v4 permanent, wrapped": {
			fmt.Errorf("order 7: %w", backoff4.Permanent(errBoom)), permanent, 0,
		},
		"cenkalti v5 permanent":        {backoff5.Permanent(errBoom), permanent, 0},
		"cenkalti v5 permanent of nil": {&backoff5.PermanentError{}, permanent, 0},
		"cenkalti v5 retry after": {
			errors.Join(errBoom, backoff5.RetryAfter(60)), retryable, time.Minute,
		},
		"cenkalti v5 retry after a past": {backoff5.RetryAfter(-60), retryable, time.Second},
		"millpond around cenkalti": {
			middleware.Retryable(backoff5.Permanent(errBoom)), retryable, time.Second,
		},

		"an error that wraps itself": {loop{}, retryable, time.Second},

		// A snooze is no failure and has no class.
		"snooze":                      {closed, "", time.Minute},
		"snooze, through errors.Join": {errors.Join(errBoom, closed), "", time.Minute},
		"snooze, the outer one wins": {
			middleware.Snooze(middleware.Permanent(errBoom), time.Minute), "", time.Minute,
		},
		"snooze inside a failure": {middleware.Retryable(closed), retryable, time.Second},
		"snooze joined behind another": {
			errors.Join(middleware.Permanent(errBoom), closed), permanent, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call := handle(t, failsWith(test.err))
			assert.Equal(t, test.class, call.State.Class)
			assert.Equal(t, test.delay, call.Delay)
			assert.Equal(t, test.class == "", call.Snoozed && call.State.Failures == 0)
		})
	}
}

func TestMarksReadLikeTheErrorTheyMark(t *testing.T) {
	t.Parallel()
	for name, marked := range map[string]error{
		"Permanent":  middleware.Permanent(errBoom),
		"Retryable":  middleware.Retryable(errBoom),
		"RetryAfter": middleware.RetryAfter(errBoom, time.Second),
		"Snooze":     middleware.Snooze(errBoom, time.Second),
	} {
		assert.Equal(t, "boom", marked.Error(), name)
		assert.Same(t, errBoom, errors.Unwrap(marked), name)
	}
	assert.Nil(t, middleware.Permanent(nil), "a mark of nil is not nil")
	assert.Nil(t, middleware.Retryable(nil), "a mark of nil is not nil")
	assert.Nil(t, middleware.RetryAfter(nil, 1), "a mark of nil is not nil")
	assert.Nil(t, middleware.Snooze(nil, 1), "a mark of nil is not nil")
}

func TestMarksThroughAPanic(t *testing.T) {
	t.Parallel()
	panics := func(*message.Message) ([]*message.Message, error) {
		panic(middleware.Permanent(errBoom))
	}
	for name, h := range map[string]message.HandlerFunc{
		"caught here":         panics,
		"caught by Recoverer": wmiddleware.Recoverer(panics),
	} {
		assert.Equal(t, permanent, handle(t, h).State.Class, name)
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

func TestSnoozeEndsAfterADay(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		options []middleware.Option
		snoozed int
	}{
		"by default": {nil, 24},
		"an option":  {options{middleware.WithSnoozeLimit(3*time.Hour + time.Minute)}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := newBroker()
			delay := time.Hour - time.Second // a real second may pass during the test
			result := broker.Run(newRetry(t, broker, test.options...).Middleware(
				failsWith(middleware.Snooze(errBoom, delay)),
			), newMessage(delivery{}))
			require.Len(t, result.Snoozes, test.snoozed)
			assert.Equal(t, 3, result.Attempts)
			assert.Equal(t, exhausted, result.State.Reason)
			assert.Equal(t, []time.Duration{delay, delay}, result.Delays)
		})
	}
}

func TestLogOfAMessageSnoozedForTooLong(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	seen := time.Now().Add(-25 * time.Hour)
	msg := newMessage(delivery{State: state{FirstSeen: seen}})
	h := newRetry(t, newBroker(), withLogger(logger)).Middleware(
		failsWith(middleware.Snooze(errBoom, time.Minute)))
	acked(t, h, msg)
	lines := logger.Captured()[watermill.InfoLogLevel]
	require.Len(t, lines, 2)
	require.True(t, strings.HasPrefix(lines[0].Msg, "Message cannot be snoozed any longer"))
	require.Equal(t, "Message will be retried", lines[1].Msg)
	assert.True(t, lines[0].Fields["first_seen"].(time.Time).Equal(seen))
}

// comparing is an error that panics when it is compared.
type comparing struct{ error }

func (comparing) Is(error) bool { panic("compared") }

func TestWithSnoozeForSnoozes(t *testing.T) {
	t.Parallel()
	errOpen, errBusy := errors.New("open"), errors.New("busy")
	minute := middleware.WithSnoozeFor(time.Minute, errOpen, errBusy)
	for name, test := range map[string]struct {
		err     error
		more    []middleware.Option
		snoozed bool
		want    time.Duration
		class   header.Class
	}{
		"the first":  {err: errOpen, snoozed: true, want: time.Minute},
		"the second": {err: errBusy, snoozed: true, want: time.Minute},
		"wrapped":    {err: fmt.Errorf("sell: %w", errOpen), snoozed: true, want: time.Minute},
		"before a classifier": {
			err: errOpen, more: options{withClassifier(permanentErrors(errOpen))},
			snoozed: true, want: time.Minute,
		},
		"the first rule wins": {
			err: errOpen, more: options{middleware.WithSnoozeFor(time.Hour, errOpen)}, snoozed: true,
			want: time.Minute,
		},
		"a second rule": {
			err: errBoom, more: options{middleware.WithSnoozeFor(time.Hour, errBoom)}, snoozed: true,
			want: time.Hour,
		},
		"a mark comes first": {err: middleware.Permanent(errOpen), class: permanent},
		"another":            {err: errBoom, class: retryable, want: time.Second},
		"panics":             {err: comparing{errBoom}, class: retryable, want: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := handle(t, failsWith(test.err), append(options{minute}, test.more...)...)
			assert.Equal(t, test.snoozed, got.State.Snoozed > 0)
			assert.Equal(t, test.want, got.Delay)
			assert.Equal(t, test.class, got.State.Class)
		})
	}
}
