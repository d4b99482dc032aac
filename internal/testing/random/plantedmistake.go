package random

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// Mistake is planted around the library, in the services of a program. The judge must find it.
type Mistake string

// The mistakes. The zero value is none.
const (
	// AckEarly acks a message and publishes its copy a moment later.
	AckEarly Mistake = "ack early"
	// PublishTwice publishes the copy for a message's second attempt twice.
	PublishTwice Mistake = "publish twice"
)

// moment is the time in which only the process has the message.
const moment = 300 * time.Millisecond

// mistaken is a republisher with a mistake.
type mistaken struct {
	middleware.Republisher
	mistake Mistake
}

func (r mistaken) Republish(
	ctx context.Context, msg *message.Message, delay time.Duration, notes header.RetryState,
) (middleware.Republished, error) {
	if r.mistake == AckEarly {
		msg.Ack()
		time.Sleep(moment)
	}
	done, err := r.Republisher.Republish(ctx, msg, delay, notes)
	if r.mistake == PublishTwice && err == nil && notes.Failures == 1 {
		return r.Republisher.Republish(ctx, msg, delay, notes)
	}
	return done, err
}
