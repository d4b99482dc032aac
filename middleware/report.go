package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// report writes the log lines of one failed attempt. No line holds a payload or
// a stack, and every error text is cut.
type report struct {
	logger  watermill.LoggerAdapter
	err     error  // the handler's
	text    string // its text, uncut
	handler string
}

func (r *DelayedRetry) newReport(ctx context.Context, d *Delivery, msg *message.Message, err error) *report {
	handler := message.HandlerNameFromCtx(ctx)
	fields := watermill.LogFields{
		"message_uuid": msg.UUID,
		"handler":      handler,
		"queue":        d.Queue,
		"topic":        message.SubscribeTopicFromCtx(ctx),
		"attempt":      attemptOf(d),
	}
	if id := wmiddleware.MessageCorrelationID(msg); id != "" {
		fields["correlation_id"] = id
	}
	text := errorText(err)
	return &report{logger: r.logger.With(fields), err: err, text: text, handler: handler}
}

func (l *report) settledByHandler() {
	l.logger.Info("Handler failed, but has acked or nacked the message itself: not retried", l.withError(nil))
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
		"cause": cutText(errorText(cause), maxLogBytes),
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
	if d.panicked != nil {
		l.fault("policy panicked, waiting a minute instead", d.panicked)
	}
	fields := watermill.LogFields{"class": string(f.mark.class)}
	if d.reason != "" {
		fields["reason"] = string(d.reason)
	} else {
		fields["delay"] = d.delay
	}
	l.logger = l.logger.With(fields)
}

func (l *report) handedOver(d decision) {
	if d.reason != "" {
		l.logger.Error("Message dead-lettered", forLog(l.err, l.text), nil)
		return
	}
	l.logger.Info("Message will be retried", l.withError(nil))
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
		watermill.LogFields{"handler_error": cutText(l.text, maxLogBytes)})
}

// withError adds the handler's error to the fields of an info line, under the
// name that error lines give to theirs.
func (l *report) withError(fields watermill.LogFields) watermill.LogFields {
	return fields.Add(watermill.LogFields{"error": cutText(l.text, maxLogBytes)})
}

func valueText(value any) (text string) {
	if contain(func() { text = fmt.Sprint(value) }) != nil {
		return fmt.Sprintf("%T", value)
	}
	return cutText(text, maxLogBytes)
}
