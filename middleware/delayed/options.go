package delayed

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// Option changes how a Republisher works.
type Option func(*Republisher) error

// WithRetryTopic names the topic to which a message that came from topic is
// published to wait. It is asked of a retry topic as well, which usually is its
// own. A handler must be subscribed to it. The function is called from many
// goroutines.
//
// Default: the topic itself.
func WithRetryTopic(name func(topic string) string) Option {
	return func(r *Republisher) error {
		if name == nil {
			return errors.New("WithRetryTopic: name is nil")
		}
		r.retryTopic = name
		return nil
	}
}

// WithDeadLetterTopic names the topic for messages of topic that were given up.
// The function is called from many goroutines.
//
// Default: the topic and ".dlq".
func WithDeadLetterTopic(name func(topic string) string) Option {
	return func(r *Republisher) error {
		if name == nil {
			return errors.New("WithDeadLetterTopic: name is nil")
		}
		r.deadLetterTopic = name
		return nil
	}
}

// WithDeadLetterPublisher publishes dead letters elsewhere.
//
// Default: the publisher of the retries.
func WithDeadLetterPublisher(publisher message.Publisher) Option {
	return func(r *Republisher) error {
		if isNil(publisher) {
			return errors.New("WithDeadLetterPublisher: publisher is nil")
		}
		r.deadLetters = publisher
		return nil
	}
}

// WithPublishTimeout bounds each publish by the context of the message, which the
// publisher must heed. It must be positive.
//
// Default: 30 s.
func WithPublishTimeout(timeout time.Duration) Option {
	return func(r *Republisher) error {
		if timeout <= 0 {
			return fmt.Errorf("WithPublishTimeout: %v is not positive", timeout)
		}
		r.timeout = timeout
		return nil
	}
}

// WithLogger sets where it is said that a Pub/Sub ignores delays.
//
// Default: nowhere.
func WithLogger(logger watermill.LoggerAdapter) Option {
	return func(r *Republisher) error {
		if isNil(logger) {
			return errors.New("WithLogger: logger is nil")
		}
		r.logger = logger
		return nil
	}
}

func isNil(v any) bool {
	if v == nil {
		return true
	}
	value := reflect.ValueOf(v)
	return value.Kind() == reflect.Pointer && value.IsNil()
}
