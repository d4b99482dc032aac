package delayed

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// Republisher is a middleware.Republisher over a Watermill publisher. Its methods may
// be called from many goroutines.
type Republisher struct {
	options
	publisher message.Publisher
	early     sync.Once
}

var _ middleware.Republisher = (*Republisher)(nil)

// Option changes a Republisher.
type Option func(*options) error

type options struct {
	deadLetters                 message.Publisher
	retryTopic, deadLetterTopic func(topic string) string
	timeout                     time.Duration
	logger                      watermill.LoggerAdapter
}

// WithRetryTopic names the topic to which a message that came from topic is published
// to wait. name is also called with a retry topic, and usually returns it unchanged. A
// handler must be subscribed to the retry topic. name is called from many goroutines.
//
// Default: the topic itself.
func WithRetryTopic(name func(topic string) string) Option {
	return func(o *options) error {
		o.retryTopic = name
		return given("WithRetryTopic: name", name)
	}
}

// WithDeadLetterTopic names the topic for messages of topic that were given up. name
// is called from many goroutines.
//
// Default: the topic and ".dlq".
func WithDeadLetterTopic(name func(topic string) string) Option {
	return func(o *options) error {
		o.deadLetterTopic = name
		return given("WithDeadLetterTopic: name", name)
	}
}

// WithDeadLetterPublisher publishes dead letters with another publisher.
//
// Default: the publisher of the retries.
func WithDeadLetterPublisher(publisher message.Publisher) Option {
	return func(o *options) error {
		o.deadLetters = publisher
		return given("WithDeadLetterPublisher: publisher", publisher)
	}
}

// WithPublishTimeout bounds each publish by the context of the message, which the
// publisher must heed. timeout must be positive.
//
// Default: 30 s.
func WithPublishTimeout(timeout time.Duration) Option {
	return func(o *options) error {
		if timeout <= 0 {
			return fmt.Errorf("WithPublishTimeout: %v is not positive", timeout)
		}
		o.timeout = timeout
		return nil
	}
}

// WithLogger sets the logger that is told of a Pub/Sub that ignores delays.
//
// Default: nothing is logged.
func WithLogger(logger watermill.LoggerAdapter) Option {
	return func(o *options) error {
		o.logger = logger
		return given("WithLogger: logger", logger)
	}
}

// given returns an error if value is nil, or a nil pointer or func.
func given(name string, value any) error {
	if value != nil {
		v := reflect.ValueOf(value)
		if kind := v.Kind(); kind != reflect.Pointer && kind != reflect.Func || !v.IsNil() {
			return nil
		}
	}
	return errors.New(name + " is nil")
}

// NewRepublisher returns a Republisher that publishes with publisher, which must
// honour the delays of components/delay. The error names every problem. The caller
// closes the publisher.
func NewRepublisher(publisher message.Publisher, opts ...Option) (*Republisher, error) {
	r := &Republisher{publisher: publisher, options: options{
		deadLetters:     publisher,
		retryTopic:      func(topic string) string { return topic },
		deadLetterTopic: func(topic string) string { return topic + ".dlq" },
		timeout:         30 * time.Second,
		logger:          watermill.NopLogger{},
	}}
	problems := []error{given("publisher", publisher)}
	for i, option := range opts {
		if option == nil {
			problems = append(problems, fmt.Errorf("option %d is nil", i))
			continue
		}
		problems = append(problems, option(&r.options))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("new delayed republisher: %w", err)
	}
	return r, nil
}

// Republish implements middleware.Republisher. It publishes the message as it arrived
// to its retry topic, with delay and state in the metadata, and returns the error of
// the publisher.
//
// The error is middleware.ErrNotDelivered if msg did not come through the Subscriber of
// r.
func (r *Republisher) Republish(
	ctx context.Context, msg *message.Message, delay time.Duration, state header.RetryState,
) (middleware.Republished, error) {
	a, err := r.arrivalOf(ctx, msg)
	if err != nil {
		return middleware.Republished{}, fmt.Errorf("republish: %w", err)
	}
	topic := r.retryTopic(a.Queue)
	out := a.copied(header.IsLive, state.Metadata)
	write(out, state.Headers(topic))
	waits := writeDelay(out.Metadata, time.Now(), delay)
	if err := r.publish(ctx, r.publisher, topic, out); err != nil {
		err = fmt.Errorf("republish message of topic %q to %q: %w", a.Queue, topic, err)
		return middleware.Republished{}, err
	}
	return middleware.Republished{Delay: waits}, nil
}

// DeadLetter implements middleware.Republisher. It publishes the message as it arrived
// to its dead-letter topic, and returns the error of the publisher. The metadata gets
// history, reason and the keys of Watermill's PoisonQueue. The delay is
// zero, because some publishers refuse a message without a delay.
//
// The error is middleware.ErrNotDelivered if msg did not come through the Subscriber of
// r.
func (r *Republisher) DeadLetter(
	ctx context.Context, msg *message.Message, state header.RetryState,
) error {
	a, err := r.arrivalOf(ctx, msg)
	if err != nil {
		return fmt.Errorf("dead-letter: %w", err)
	}
	topic := r.deadLetterTopic(a.Queue)
	out := a.copied(header.IsState, state.Metadata)
	headers := state.DeadHeaders(a.Queue)
	write(out, headers)
	write(out, map[string]string{
		wmiddleware.ReasonForPoisonedKey:  headers[header.DeadError],
		wmiddleware.PoisonedTopicKey:      a.Queue,
		wmiddleware.PoisonedHandlerKey:    state.Handler,
		wmiddleware.PoisonedSubscriberKey: message.SubscriberNameFromCtx(ctx),
	})
	writeDelay(out.Metadata, time.Now(), 0)
	if err := r.publish(ctx, r.deadLetters, topic, out); err != nil {
		return fmt.Errorf("dead-letter message of topic %q to %q: %w", a.Queue, topic, err)
	}
	return nil
}

func (r *Republisher) publish(
	ctx context.Context, to message.Publisher, topic string, msg *message.Message,
) error {
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
	return nil, fmt.Errorf("put the subscriber through the Republisher's Subscriber method, "+
		"or router.AddSubscriberDecorators(republisher.Subscriber), "+
		"and leave the message in its place: %w", middleware.ErrNotDelivered)
}
