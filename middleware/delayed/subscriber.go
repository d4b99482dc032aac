package delayed

import (
	"context"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Subscriber returns sub with every message remembered as it arrives, so that r
// can publish it again. It is a message.SubscriberDecorator, so a router may be
// given it for all its subscribers. It should be the outermost decorator: what
// others outside it do to a message does not travel.
//
// The live notes of another topic are dropped before anyone reads them: a message
// that was forwarded starts at attempt 1. Closing it closes sub.
func (r *Republisher) Subscriber(sub message.Subscriber) (message.Subscriber, error) {
	if isNil(sub) {
		return nil, errors.New("delayed subscriber: subscriber is nil")
	}
	return &subscriber{inner: sub, republisher: r, closing: make(chan struct{})}, nil
}

type subscriber struct {
	inner       message.Subscriber
	republisher *Republisher

	closing chan struct{}
	close   sync.Once
	err     error
	running sync.WaitGroup
}

// Subscribe implements message.Subscriber.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.inner.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	s.running.Go(func() {
		defer close(out)
		for msg := range in {
			s.republisher.arrived(msg, topic, s.closing)
			select {
			case out <- msg:
			case <-s.closing:
				msg.Nack()
			case <-ctx.Done():
				msg.Nack()
			}
		}
	})
	return out, nil
}

// Close closes the subscriber inside and returns what it does, once what it had
// handed out is passed on or nacked.
func (s *subscriber) Close() error {
	s.close.Do(func() {
		close(s.closing)
		s.err = s.inner.Close()
	})
	s.running.Wait()
	return s.err
}
