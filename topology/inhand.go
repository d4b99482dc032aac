package topology

import (
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// defaultHandlerWarning leaves twenty minutes until the broker's consumer timeout
// (F16).
const defaultHandlerWarning = 10 * time.Minute

// WithHandlerWarning says in the log, once for each message, that its handler has
// had it for longer than d: a handler that never returns keeps its place, which
// with WithConcurrency(1) stops the queue, and after the broker's consumer timeout,
// 30 minutes unless set, the channel is closed and everything on it delivered again
// (F16). It is looked for four times within d, at least once a minute. 0 never
// looks. Not negative.
//
// Default: 10 min.
func WithHandlerWarning(d time.Duration) SubscriberOption {
	return func(o *subscriberOptions) error {
		if d < 0 {
			return fmt.Errorf("WithHandlerWarning: %v is negative", d)
		}
		o.handlerWarning = d
		return nil
	}
}

// inHand are the messages that handlers have, so that one goroutine for each
// Subscribe can look after all of them.
type inHand struct {
	mu   sync.Mutex
	have map[*delivery]held
}

type held struct {
	since time.Time
	uuid  string // of the message, which is the handler's meanwhile
}

func (h *inHand) add(d *delivery, uuid string) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.have[d] = held{now, uuid}
}

func (h *inHand) remove(d *delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.have, d)
}

// overdue returns the messages that handlers have had since before then, each
// once.
func (h *inHand) overdue(then time.Time) map[*delivery]held {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := map[*delivery]held{}
	for d, held := range h.have {
		if held.since.Before(then) {
			found[d] = held
			delete(h.have, d)
		}
	}
	return found
}

// watchHandlers warns of handlers that do not return, until stop is called.
func (s *subscription) watchHandlers() (stop func()) {
	limit := s.subscriber.opts.handlerWarning
	if limit == 0 {
		return func() {}
	}
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(min(max(limit/4, time.Millisecond), time.Minute))
		defer ticker.Stop()
		for {
			select {
			case now := <-ticker.C:
				for d, held := range s.inHand.overdue(now.Add(-limit)) {
					s.warnOfHandler(d, held, now)
				}
			case <-over:
				return
			}
		}
	}()
	return func() {
		close(over)
		<-ended
	}
}

// warnOfHandler reads nothing that the handler may be writing.
func (s *subscription) warnOfHandler(d *delivery, held held, now time.Time) {
	id := d.MessageID
	if id == "" {
		id = held.uuid
	}
	handler := d.Handler()
	s.logger.Error("Handler does not return: give it an end, with Watermill's Timeout inside DelayedRetry and a handler that heeds its context; "+
		"the message keeps its place, and after the broker's consumer timeout (30m unless set) is delivered again",
		fmt.Errorf("handler %q has had the message for %v", handler, now.Sub(held.since).Round(time.Millisecond)),
		watermill.LogFields{
			"handler": handler, "message_id": id, "message_uuid": held.uuid, "attempt": d.State.Failures + 1,
			"held": now.Sub(held.since),
		})
}
