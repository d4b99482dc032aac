package middlewaretest_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

func TestRunOfAMessageThatIsSetAside(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	calls := 0
	got := broker.Run(retrying(t, broker, oneAndTen)(middlewaretest.Consumer(func(msg *message.Message) error {
		calls++
		seen := !middleware.StateOf(msg.Context()).FirstSeen.IsZero()
		if inMetadata := msg.Metadata[header.FirstSeen] != ""; seen != (calls > 1) || inMetadata != seen {
			t.Errorf("delivery %d: seen %v, metadata %v", calls, seen, msg.Metadata)
		}
		switch calls {
		case 1, 3:
			return middleware.Snooze(errBoom, time.Minute)
		case 2:
			return errBoom
		default:
			return nil
		}
	})), order())
	if want := "handled after 2 attempts, delays 1s, set aside 1m0s 1m0s"; got.String() != want || got.Elapsed() != 2*time.Minute+time.Second {
		t.Errorf("got  %s (%v)\nwant %s", got, got.Elapsed(), want)
	}
	var aside []bool
	for _, call := range broker.Calls() {
		aside = append(aside, call.SetAside)
	}
	if len(aside) != 3 || !aside[0] || aside[1] || !aside[2] {
		t.Errorf("set aside: %v", aside)
	}
}

// A minute would have to be asked for 1440 times until it counts as a failure.
func TestRunEndsWhereAMessageIsAlwaysSetAside(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	got := broker.Run(retrying(t, broker, oneAndTen)(middlewaretest.Consumer(func(*message.Message) error {
		return middleware.Snooze(errBoom, time.Minute)
	})), order())
	if got.Outcome != middlewaretest.Waiting || got.Attempts != 0 || len(got.SetAside) != middlewaretest.MaxAttempts {
		t.Errorf("%s after %d attempts, set aside %d times", got.Outcome, got.Attempts, len(got.SetAside))
	}
}

func TestRunOfAMessageThatIsNotHandledAnyMore(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders", State: header.RetryState{Failures: 9}}, nil)
	got := broker.Run(retrying(t, broker, oneAndTen)(failing(-1)), msg)
	if want := "dead-lettered (exhausted) after 0 attempts"; got.String() != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestKeptMetadataStaysWithTheMessage(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	var seen []string
	got := broker.Run(retrying(t, broker, oneAndTen, middleware.WithKeptMetadata("step"))(
		middlewaretest.Consumer(func(msg *message.Message) error {
			seen = append(seen, msg.Metadata["step"])
			if len(seen) == 1 {
				msg.Metadata["step"], msg.Metadata["other"] = "paid", "lost"
			} else if delete(msg.Metadata, "step"); msg.Metadata["other"] != "" {
				t.Error("other metadata is kept, too")
			}
			return errBoom
		})), order())
	if len(seen) != 3 || seen[0] != "" || seen[1] != "paid" || seen[2] != "paid" {
		t.Errorf("got %q", seen)
	}
	if calls := broker.Calls(); calls[0].Notes.Metadata["step"] != "paid" || got.Attempts != 3 {
		t.Errorf("got %s, %v", got, calls[0].Notes.Metadata)
	}
}
