package delayed

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// arrival is a message as it arrived. It shares nothing with the one that is
// handed out, of which a handler may change everything in place.
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
	if owner, noted := get(header.Queue); noted && owner != topic {
		// Notes of another topic: the message was forwarded or copied here. The map may
		// be shared with the Pub/Sub.
		msg.Metadata = maps.Clone(msg.Metadata)
		maps.DeleteFunc(msg.Metadata, func(key, _ string) bool { return header.IsLive(key) })
	}
	a := &arrival{republisher: r, uuid: msg.UUID, payload: slices.Clone(msg.Payload), metadata: maps.Clone(msg.Metadata)}
	a.Queue, a.Arrived, a.Closing, a.Source, a.Given = topic, time.Now(), closing, a, given
	a.State = header.Parse(topic, get)
	if a.State.OriginExchange == "" && a.State.OriginRoutingKey == "" {
		a.State.OriginRoutingKey = topic
	}
	a.Attach(msg)
	a.checkDelay()
}

// checkDelay tells, once, of a Pub/Sub that brings messages back early. Clocks of
// several machines may differ by a second.
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
		a.republisher.logger.Error("A message came back before its delay was over: this Pub/Sub does not honour components/delay",
			fmt.Errorf("it waited %v instead of %v", waited, asked), a.LogFields().Add(watermill.LogFields{"queue": a.Queue}))
	})
}

// copied returns the message as it arrived, without the keys to drop, and with the
// metadata that travels.
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

// plain leaves out what PostgreSQL cannot take: of one NUL in the metadata of one
// row it refuses to read the whole topic.
func plain(value string) string { return strings.ReplaceAll(value, "\x00", "\uFFFD") }

// due returns the whole second at which a message that waits from now on returns.
func due(now time.Time, wait time.Duration) time.Time {
	until := now.Add(wait)
	if cut := until.Truncate(time.Second); wait > 0 && cut.Before(until) {
		return cut.Add(time.Second)
	}
	return until
}

// given returns how long a message waits that asks for a delay now.
func given(asked time.Duration) time.Duration {
	now := time.Now()
	return due(now, max(asked, 0)).Sub(now)
}

// writeDelay writes how long the message is to wait, and returns how long that
// may become. Watermill cuts the time to a second, which would make it early.
func writeDelay(metadata message.Metadata, now time.Time, wait time.Duration) time.Duration {
	wait = max(wait, 0)
	until := due(now, wait)
	metadata[delay.DelayedUntilKey] = until.UTC().Format(time.RFC3339)
	metadata[delay.DelayedForKey] = wait.String()
	return until.Sub(now)
}
