package topology

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
)

const (
	// strandedPause is between two looks at a stranded queue.
	strandedPause = 30 * time.Second
	// strandedTimeout bounds each look.
	strandedTimeout = 10 * time.Second
)

// errStranded is what the log calls messages in a stranded queue.
var errStranded = errors.New("messages whose wait was over found no way to their queue")

// watchStranded looks at the stranded queues of a plan until the client is closed. One
// goroutine looks at each, whatever the number of subscriptions.
func (c *Client) watchStranded(plan Plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range plan.audited().Members() {
		if m.Role != audit.RoleStranded || c.closed || c.watched[m.Name] {
			continue
		}
		c.watched[m.Name] = true
		c.watches.Go(func() { c.lookForStranded(m.Name) })
	}
}

// lookForStranded says when there are more messages in a stranded queue than at the
// two looks before. It says nothing while the broker is away, and ends where the user may
// not look: from 4.3 on that takes the configure permission (F24).
func (c *Client) lookForStranded(queue string) {
	known, before := 0, 0
	for more := true; more; more = sleep(c.stop, c.opts.strandedPause) {
		if c.publisher.Healthy() != nil {
			continue // an alarm, for example: the broker does not read the question
		}
		ctx, cancel := context.WithTimeout(c.stop, strandedTimeout)
		found, err := audit.Passive(ctx, c.publisher.Do, queue)
		cancel()
		switch {
		case isCode(err, amqp.AccessRefused):
			c.opts.logger.Info("Warning: the user may not look at the stranded queue, so that stranded messages are not named here: "+
				"grant the configure permission for the queue, or watch its depth", watermill.LogFields{"queue": queue, "err": err.Error()})
			return
		case err != nil:
			continue
		case found.Messages > known:
			c.opts.logger.Error("Messages are stranded: their queue or its binding was deleted while they waited, or a policy with "+
				"dead-letter-routing-key has changed their routing key; look at rabbitmqctl list_policies and list_bindings, correct the "+
				"cause, and move the messages to the queue that their header millpond-queue names", errStranded,
				watermill.LogFields{"queue": queue, "messages": found.Messages})
		}
		// A look of an operator empties the queue for a moment.
		known, before = max(before, found.Messages), found.Messages
	}
}
