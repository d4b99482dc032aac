package middleware_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

func TestLaterIsFoundAsOtherMarksAre(t *testing.T) {
	t.Parallel()
	closed := middleware.Snooze(errBoom, time.Minute)
	for name, test := range map[string]struct {
		err   error
		aside bool
	}{
		"as it is":              {closed, true},
		"through %w":            {fmt.Errorf("order 7: %w", closed), true},
		"through errors.Join":   {errors.Join(errBoom, closed), true},
		"through a multierror":  {&multierror{errBoom, closed}, true},
		"the outer one wins":    {middleware.Snooze(middleware.Permanent(errBoom), time.Minute), true},
		"an outer failure wins": {middleware.Retryable(closed), false},
		"the first joined wins": {errors.Join(middleware.Permanent(errBoom), closed), false},
		"retry after, no later": {middleware.RetryAfter(errBoom, time.Minute), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call := handle(t, failsWith(test.err), middleware.WithDefaultClass(permanent))
			if call.SetAside != test.aside {
				t.Errorf("set aside: %v, want %v: %+v", call.SetAside, test.aside, call)
			}
			if test.aside && (call.Dead || call.Delay != time.Minute || call.Notes.Failures != 0 || call.Notes.FirstSeen.IsZero()) {
				t.Errorf("got %+v", call)
			}
		})
	}
}

func TestLaterReadsAsItsError(t *testing.T) {
	t.Parallel()
	if middleware.Snooze(nil, time.Minute) != nil {
		t.Error("of nil it is not nil")
	}
	err := middleware.Snooze(errBoom, time.Minute)
	if err.Error() != "boom" || !errors.Is(err, errBoom) {
		t.Errorf("got %v", err)
	}
}

func TestAMessageSetAsideKeepsItsAttempts(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	var seen []string
	step := 0
	result := broker.Run(newRetry(t, broker).Middleware(middlewaretest.Consumer(func(msg *message.Message) error {
		ctx := msg.Context()
		state := middleware.StateOf(ctx)
		since, failed := !state.FirstSeen.IsZero(), !state.FirstFailure.IsZero()
		seen = append(seen, fmt.Sprintf("attempt %d, %d past, seen %v, failed %v",
			middleware.Attempt(ctx), len(state.History), since, failed))
		if step++; step == 3 || step > 4 {
			return errBoom
		}
		return middleware.Snooze(errBoom, time.Minute)
	})), newMessage(middleware.Delivery{}))
	want := []string{
		"attempt 1, 0 past, seen false, failed false",
		"attempt 1, 0 past, seen true, failed false",
		"attempt 1, 0 past, seen true, failed false",
		"attempt 2, 1 past, seen true, failed true",
		"attempt 2, 1 past, seen true, failed true",
		"attempt 3, 2 past, seen true, failed true",
	}
	assert.Equal(t, want, seen)
	assert.Equal(t, "dead-lettered (exhausted) after 3 attempts, delays 1s 10s, set aside 1m0s 1m0s 1m0s", result.String())
}

func TestLaterEndsAfterADay(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		options []middleware.Option
		aside   int
	}{
		"by default": {nil, 24},
		"an option":  {options{middleware.WithSnoozeLimit(3*time.Hour + time.Minute)}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := middlewaretest.NewBroker()
			delay := time.Hour - time.Second // a real second may pass during the test
			result := broker.Run(newRetry(t, broker, test.options...).Middleware(
				failsWith(middleware.Snooze(errBoom, delay)),
			), newMessage(middleware.Delivery{}))
			if len(result.SetAside) != test.aside || result.Attempts != 3 || result.Notes.Reason != header.ReasonExhausted {
				t.Errorf("got %s", result)
			}
			assert.Equal(t, []time.Duration{delay, delay}, result.Delays)
		})
	}
}

func TestLogOfSettingAside(t *testing.T) {
	t.Parallel()
	msg := newMessage(middleware.Delivery{})
	line := logged(t, watermill.InfoLogLevel, failsWith(middleware.Snooze(errBoom, time.Minute)), msg)
	want := watermill.LogFields{
		"message_id": msg.UUID, "message_uuid": msg.UUID, "handler": "", "queue": "orders", "topic": "",
		"attempt": 1, "delay": time.Minute, "error": "boom",
	}
	if line.Msg != "Message snoozed" || !reflect.DeepEqual(line.Fields, want) {
		t.Errorf("got %q with\n%v, want\n%v", line.Msg, line.Fields, want)
	}
}

func TestLogOfAMessageSetAsideForTooLong(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	seen := time.Now().Add(-25 * time.Hour)
	msg := newMessage(middleware.Delivery{State: state{FirstSeen: seen}})
	h := newRetry(t, middlewaretest.NewBroker(), middleware.WithLogger(logger)).Middleware(
		failsWith(middleware.Snooze(errBoom, time.Minute)))
	acked(t, h, msg)
	lines := logger.Captured()[watermill.InfoLogLevel]
	if len(lines) != 2 || !strings.HasPrefix(lines[0].Msg, "Message cannot be snoozed any longer") ||
		lines[1].Msg != "Message will be retried" {
		t.Fatalf("logged %+v", lines)
	}
	if at := lines[0].Fields["first_seen"].(time.Time); !at.Equal(seen) {
		t.Errorf("first seen %v, want %v", at, seen)
	}
}

func TestAMessageThatCannotBeSetAsideIsHeldAndNacked(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	broker.FailNext(1, middleware.ErrNotDelivered)
	_, err := newRetry(t, broker).Middleware(failsWith(middleware.Snooze(errBoom, time.Minute)))(newMessage(middleware.Delivery{}))
	wantErrors(t, err, errBoom, middleware.ErrNotHandedOver)
}
