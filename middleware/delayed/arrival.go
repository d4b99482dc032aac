package delayed

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// Subscriber returns a subscriber that remembers every message of sub as it arrives,
// so that r can publish it again. It is a message.SubscriberDecorator: a router takes
// it for all its subscribers. It should be the outermost decorator, because changes
// that others outside it make to a message do not travel.
//
// It drops the live headers of another topic, so that a message that was forwarded
// starts at attempt 1. Closing it closes sub.
func (r *Republisher) Subscriber(sub message.Subscriber) (message.Subscriber, error) {
	if err := given("delayed subscriber: subscriber", sub); err != nil {
		return nil, err
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

// Close closes the inner subscriber and returns its error, after each of its messages
// is passed on or nacked.
func (s *subscriber) Close() error {
	s.close.Do(func() {
		close(s.closing)
		s.err = s.inner.Close()
	})
	s.running.Wait()
	return s.err
}

// arrival is a message as it arrived. It shares nothing with the message that the
// handler gets and may change in place.
type arrival struct {
	middleware.Attached
	republisher *Republisher
	uuid        string
	payload     message.Payload
	metadata    message.Metadata
}

// arrived remembers msg and attaches its delivery.
func (r *Republisher) arrived(msg *message.Message, topic string, closing <-chan struct{}) {
	get := func(key string) (string, bool) {
		value, ok := msg.Metadata[key]
		return value, ok
	}
	if owner, live := get(header.Queue); live && owner != topic {
		// The message was forwarded or copied here. The Pub/Sub may share the map.
		msg.Metadata = maps.Clone(msg.Metadata)
		maps.DeleteFunc(msg.Metadata, func(key, _ string) bool { return header.IsLive(key) })
	}
	a := &arrival{
		republisher: r, uuid: msg.UUID,
		payload: slices.Clone(msg.Payload), metadata: maps.Clone(msg.Metadata),
	}
	a.Queue, a.Arrived, a.Closing, a.Source, a.Given = topic, time.Now(), closing, a, waitFor
	a.State = header.Parse(topic, get)
	if a.State.OriginExchange == "" && a.State.OriginRoutingKey == "" {
		a.State.OriginRoutingKey = topic
	}
	a.Attach(msg)
	a.checkDelay()
}

// checkDelay logs once that a Pub/Sub brings messages back early. Clocks of several
// machines may differ by a second.
func (a *arrival) checkDelay() {
	if a.State.WaitingSince.IsZero() {
		return
	}
	asked := a.State.Delay
	if a.State.Snoozed > 0 {
		asked = a.State.Snoozed
	}
	waited := a.Arrived.Sub(a.State.WaitingSince)
	if waited >= asked-time.Second {
		return
	}
	a.republisher.early.Do(func() {
		a.republisher.logger.Error("A message came back before its delay was over: "+
			"this Pub/Sub does not honour components/delay",
			fmt.Errorf("it waited %v instead of %v", waited, asked),
			a.LogFields().Add(watermill.LogFields{"queue": a.Queue}))
	})
}

// copied returns the message as it arrived, without the keys to drop, and with the
// kept metadata.
func (a *arrival) copied(drop func(key string) bool, kept map[string]string) *message.Message {
	msg := message.NewMessage(a.uuid, slices.Clone(a.payload))
	for key, value := range a.metadata {
		if !drop(key) {
			msg.Metadata[key] = value
		}
	}
	for key, value := range kept {
		if arrived, ok := a.metadata[key]; ok && arrived != value || !ok && value != "" {
			msg.Metadata[key] = plain(value)
		}
	}
	return msg
}

func write(msg *message.Message, headers map[string]string) {
	for key, value := range headers {
		msg.Metadata[key] = plain(value)
	}
}

// plain replaces NUL. With one NUL in the metadata of one row PostgreSQL refuses to
// read the whole topic.
func plain(value string) string { return strings.ReplaceAll(value, "\x00", "\uFFFD") }

// due returns the whole second at which a message that waits from now on comes back.
func due(now time.Time, wait time.Duration) time.Time {
	until := now.Add(wait)
	if cut := until.Truncate(time.Second); wait > 0 && cut.Before(until) {
		return cut.Add(time.Second)
	}
	return until
}

// waitFor returns the real wait of a message that asks for a delay now.
func waitFor(asked time.Duration) time.Duration {
	now := time.Now()
	return due(now, max(asked, 0)).Sub(now)
}

// writeDelay writes the delay, and returns the real wait, which may be longer.
// Watermill cuts the time to a second, so that the message would come back early.
func writeDelay(metadata message.Metadata, now time.Time, wait time.Duration) time.Duration {
	wait = max(wait, 0)
	until := due(now, wait)
	metadata[delay.DelayedUntilKey] = until.UTC().Format(time.RFC3339)
	metadata[delay.DelayedForKey] = wait.String()
	return until.Sub(now)
}
