package delayed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

const defaultTimeout = 30 * time.Second

// Republisher is a middleware.Republisher over a Watermill publisher. Its methods
// may be called from many goroutines.
type Republisher struct {
	publisher, deadLetters      message.Publisher
	retryTopic, deadLetterTopic func(topic string) string
	timeout                     time.Duration
	logger                      watermill.LoggerAdapter
	early                       sync.Once
}

var _ middleware.Republisher = (*Republisher)(nil)

// NewRepublisher returns a Republisher that publishes with publisher, which must
// honour the delays of components/delay. The error names every problem. The
// publisher stays the caller's to close.
func NewRepublisher(publisher message.Publisher, options ...Option) (*Republisher, error) {
	r := &Republisher{
		publisher:       publisher,
		deadLetters:     publisher,
		retryTopic:      func(topic string) string { return topic },
		deadLetterTopic: func(topic string) string { return topic + ".dlq" },
		timeout:         defaultTimeout,
		logger:          watermill.NopLogger{},
	}
	var problems []error
	if isNil(publisher) {
		problems = append(problems, errors.New("publisher is nil"))
	}
	for i, option := range options {
		if option == nil {
			problems = append(problems, fmt.Errorf("option %d is nil", i))
			continue
		}
		problems = append(problems, option(r))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("new delayed republisher: %w", err)
	}
	return r, nil
}

// Republish implements middleware.Republisher: it publishes the message as it
// arrived, with delay and notes in its metadata, to its retry topic. It returns
// what the publisher does.
//
// The error is middleware.ErrNotDelivered where msg did not come through the
// Subscriber of r.
func (r *Republisher) Republish(
	ctx context.Context, msg *message.Message, delay time.Duration, notes header.RetryState,
) (middleware.Republished, error) {
	a, err := r.arrivalOf(ctx, msg)
	if err != nil {
		return middleware.Republished{}, fmt.Errorf("republish: %w", err)
	}
	topic := r.retryTopic(a.Queue)
	out := a.copied(header.IsLive, notes.Metadata)
	write(out, notes.Headers(topic))
	waits := writeDelay(out.Metadata, time.Now(), delay)
	if err := r.publish(ctx, r.publisher, topic, out); err != nil {
		return middleware.Republished{}, fmt.Errorf("republish message of topic %q to %q: %w", a.Queue, topic, err)
	}
	return middleware.Republished{Delay: waits}, nil
}

// DeadLetter implements middleware.Republisher: it publishes the message as it
// arrived, with history, reason and the keys of Watermill's PoisonQueue in its
// metadata, to its dead-letter topic. It returns what the publisher does. The
// delay is zero: publishers that refuse a message without one take it.
//
// The error is middleware.ErrNotDelivered where msg did not come through the
// Subscriber of r.
func (r *Republisher) DeadLetter(ctx context.Context, msg *message.Message, notes header.RetryState) error {
	a, err := r.arrivalOf(ctx, msg)
	if err != nil {
		return fmt.Errorf("dead-letter: %w", err)
	}
	topic := r.deadLetterTopic(a.Queue)
	out := a.copied(header.IsState, notes.Metadata)
	headers := notes.DeadHeaders(a.Queue)
	write(out, headers)
	write(out, map[string]string{
		wmiddleware.ReasonForPoisonedKey:  headers[header.DeadError],
		wmiddleware.PoisonedTopicKey:      a.Queue,
		wmiddleware.PoisonedHandlerKey:    notes.Handler,
		wmiddleware.PoisonedSubscriberKey: message.SubscriberNameFromCtx(ctx),
	})
	writeDelay(out.Metadata, time.Now(), 0)
	if err := r.publish(ctx, r.deadLetters, topic, out); err != nil {
		return fmt.Errorf("dead-letter message of topic %q to %q: %w", a.Queue, topic, err)
	}
	return nil
}

func (r *Republisher) publish(ctx context.Context, to message.Publisher, topic string, msg *message.Message) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	msg.SetContext(ctx)
	return to.Publish(topic, msg)
}

func (r *Republisher) arrivalOf(ctx context.Context, msg *message.Message) (*arrival, error) {
	if d := middleware.DeliveryOf(ctx, msg); d != nil {
		if a, ok := d.Source.(*arrival); ok && a.republisher == r {
			return a, nil
		}
	}
	return nil, fmt.Errorf("put the subscriber through the Republisher's Subscriber method, or router.AddSubscriberDecorators(republisher.Subscriber), "+
		"and leave the message in its place: %w", middleware.ErrNotDelivered)
}
