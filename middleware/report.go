package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/middleware/header"
)

// report writes the log lines of one attempt. No line holds a payload or a
// stack, and every error text is cut.
type report struct {
	logger watermill.LoggerAdapter
	plain  watermill.LoggerAdapter // without the decision
	class  string                  // of the decision; "" if it has none
	fields watermill.LogFields     // of the decision, which logger adds to those of plain
	err    error                   // the handler's, or why it was not called
	text   string                  // its text, uncut
	at     place
	quiet  bool // the logger drops everything
}

func (r *DelayedRetry) newReport(ctx context.Context, d *Delivery, err error, text string) *report {
	at := placeOf(ctx, d)
	if _, quiet := r.logger.(watermill.NopLogger); quiet {
		return &report{logger: r.logger, err: err, text: text, at: at, quiet: true}
	}
	fields := d.logFields(d.idsNow())
	fields["handler"], fields["queue"], fields["topic"] = at.handler, at.queue, at.topic
	return &report{logger: r.logger.With(fields), err: err, text: text, at: at}
}

func (l *report) ackedTooEarly() {
	l.logger.Error("Handler failed after its message was acked: it is lost and cannot be retried; "+
		"leave InstantAck out, and ack in no handler", forLog(l.err, l.text), nil)
}

func (l *report) nackedByHandler() {
	l.logger.Info("Handler failed, but has nacked the message itself: not retried", l.withError(nil))
}

func (l *report) interrupted(cause error) {
	if errors.Is(cause, context.DeadlineExceeded) {
		l.logger.Error(
			"Message context reached its deadline: no attempt is counted; "+
				"a Timeout middleware belongs inside DelayedRetry, not around it", forLog(l.err, l.text), nil,
		)
		return
	}
	l.logger.Info("Handling was interrupted: no attempt is counted", l.withError(watermill.LogFields{
		"cause": excerpt.Of(errorText(cause), maxLogBytes),
	}))
}

// fault reports code of the user that panicked or broke its contract.
func (l *report) fault(what string, value any) {
	l.logger.Error("Retry decision: "+what, forLog(l.err, l.text), watermill.LogFields{
		"value": valueText(value),
	})
}

// decided adds the decision to every further line.
func (l *report) decided(f failure, d decision) {
	for _, fault := range d.faults {
		l.fault(fault.what, fault.value)
	}
	if d.overdue {
		l.logger.Info("Message cannot be set aside any longer: the attempt counts as a failure",
			watermill.LogFields{"first_seen": notAfter(f.notes.FirstSeen, f.now)})
	}
	l.plain, l.class = l.logger, string(f.mark.class)
	if d.aside {
		l.class = ""
	}
	if l.quiet {
		return
	}
	l.fields = watermill.LogFields{}
	if !d.aside {
		l.fields["class"] = string(f.mark.class)
	}
	if d.overBudget {
		l.fields["over_budget"] = true
	}
	if d.reason != "" {
		addReason(l.fields, d.reason, &f.notes)
		l.logger = l.plain.With(l.fields)
		return
	}
	l.waits(d.delay, givenBy(f.given, d.delay))
}

// waits adds the delay that the message is given to every further line, and the one
// that was asked for where they differ.
func (l *report) waits(asked, given time.Duration) {
	if l.quiet || l.fields["delay"] == given {
		return
	}
	l.fields["delay"] = given
	if differs(asked, given) {
		l.fields["asked"] = asked
	}
	l.logger = l.plain.With(l.fields)
}

// refused adds why the message is not handled to every further line.
func (l *report) refused(reason header.Reason, n *header.RetryState) {
	fields := watermill.LogFields{}
	addReason(fields, reason, n)
	l.logger = l.logger.With(fields)
}

// addReason adds why a message is given up, and of a deadline what it was counted from.
func addReason(fields watermill.LogFields, reason header.Reason, n *header.RetryState) {
	fields["reason"] = string(reason)
	if reason == header.ReasonDeadline {
		fields["deadline"], fields["deadline_from"] = n.Deadline.UTC(), n.DeadlineFrom
	}
}

// handedOver reports a message that the broker has confirmed, to wait for given.
func (l *report) handedOver(t *transfer, given time.Duration) {
	if t.notes.Reason == "" {
		l.waits(t.delay, given)
	}
	switch {
	case t.notes.Reason != "" && t.err == nil:
		l.logger.Error("Message dead-lettered without being handled", forLog(l.err, l.text), nil)
	case t.notes.Reason != "":
		l.logger.Error("Message dead-lettered", forLog(l.err, l.text), nil)
	case t.aside:
		l.logger.Info("Message set aside", l.withError(nil))
	default:
		l.logger.Info("Message will be retried", l.withError(nil))
	}
}

// notRetried reports a message that was decided to be retried, but could only be
// dead-lettered.
func (l *report) notRetried(reason header.Reason) {
	fields := watermill.LogFields{"reason": string(reason)}
	if l.class != "" {
		fields["class"] = l.class
	}
	l.plain.Error("Message dead-lettered", forLog(l.err, l.text), fields)
}

// notKept reports a metadata value that does not travel.
func (l *report) notKept(key, why string) {
	l.logger.Error("Metadata is not kept", errors.New(why), watermill.LogFields{"key": key})
}

func (l *report) hookPanicked(value any) {
	l.logger.Error("Dead-letter hook panicked", forLog(l.err, l.text), watermill.LogFields{"value": valueText(value)})
}

func (l *report) handOverFails(err error, tries int, held time.Duration) {
	l.logger.Error("Failed message cannot be handed over, holding it", forLog(err, errorText(err)), watermill.LogFields{
		"tries": tries, "held": held,
	})
}

func (l *report) handOverRecovered(tries int, held time.Duration) {
	l.logger.Info("Failed message handed over at last", watermill.LogFields{"tries": tries, "held": held})
}

func (l *report) handOverFailed(err error) {
	l.logger.Error("Failed message was not handed over, returning it to its queue", forLog(err, errorText(err)),
		watermill.LogFields{"handler_error": excerpt.Of(l.text, maxLogBytes)})
}

// withError adds the handler's error to the fields of an info line, under the
// name that error lines give to theirs.
func (l *report) withError(fields watermill.LogFields) watermill.LogFields {
	if l.quiet {
		return nil
	}
	return fields.Add(watermill.LogFields{"error": excerpt.Of(l.text, maxLogBytes)})
}

func valueText(value any) (text string) {
	if contain(func() { text = fmt.Sprint(value) }) != nil {
		return fmt.Sprintf("%T", value)
	}
	return excerpt.Of(text, maxLogBytes)
}
