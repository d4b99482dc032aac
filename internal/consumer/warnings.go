package consumer

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/internal/seam"
)

// inHand are the messages that handlers or the marshaler have. One goroutine of each Subscription
// watches all of them.
type inHand struct {
	mu   sync.Mutex
	have map[*delivery]held

	since   time.Time // of the next two
	ended   int       // messages that handlers have had
	longest time.Duration
}

type held struct {
	since  time.Time
	logged bool
}

func (h *inHand) add(d *delivery) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.have[d] = held{since: now}
}

func (h *inHand) remove(d *delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if held, ok := h.have[d]; ok {
		h.ended, h.longest = h.ended+1, max(h.longest, time.Since(held.since))
		delete(h.have, d)
	}
}

// reset forgets the messages that handlers have had.
func (h *inHand) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.since, h.ended, h.longest = time.Now(), 0, 0
}

// seen returns the time of the last reset, how many messages handlers have had since then, and
// the longest time of a message. It may be in hand still.
func (h *inHand) seen() (since time.Time, ended int, longest time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	longest = h.longest
	for _, held := range h.have {
		longest = max(longest, time.Since(held.since))
	}
	return h.since, h.ended, longest
}

// overdue returns since when messages are in hand that were so before then, each message once.
func (h *inHand) overdue(then time.Time) map[*delivery]time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := map[*delivery]time.Time{}
	for d, held := range h.have {
		if !held.logged && held.since.Before(then) {
			found[d], held.logged = held.since, true
			h.have[d] = held
		}
	}
	return found
}

// watchHandlers logs handlers and marshalers that do not return, until stop is called.
func (s *Subscription) watchHandlers() (stop func()) {
	limit := s.cfg.HandlerWarning
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
				for d, since := range s.inHand.overdue(now.Add(-limit)) {
					s.logHandler(d, now.Sub(since))
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

// logHandler reads nothing that the handler may be writing.
func (s *Subscription) logHandler(d *delivery, held time.Duration) {
	if d.life.phase() == decoding {
		s.logger.Error("Marshaler does not return: make it wait for nothing, and start again; the "+
			"message keeps its place, and the broker delivers it again after its consumer timeout (30m "+
			"unless set)",
			HasHad("the marshaler", held), watermill.LogFields{"message_id": d.MessageID, "held": held})
		return
	}
	id := cmp.Or(d.MessageID, d.uuid)
	handler := d.Place(d.contextOfUser()).Handler
	s.logger.Error("Handler does not return: use Watermill's Timeout inside DelayedRetry and a "+
		"handler that heeds its context; the message keeps its place, and the broker delivers it "+
		"again after its consumer timeout (30m unless set)",
		HasHad(fmt.Sprintf("handler %q", handler), held),
		watermill.LogFields{
			"handler": handler, "message_id": id, "message_uuid": d.uuid, "attempt": d.State.Failures + 1,
			"held": held,
		})
}

// HasHad says how long a function of the user has had a message.
func HasHad(function string, held time.Duration) error {
	return fmt.Errorf("%s has had the message for %v", function, held.Round(time.Millisecond))
}

// slowCheck returns how often to look whether the prefetch suits the handlers; 0 for never.
func (s *Subscription) slowCheck(c *Channel) time.Duration {
	cfg := &s.cfg.Consume
	if c.use != ToConsume || c.Together || cfg.PrefetchBy != ByLibrary ||
		cfg.Prefetch <= cfg.Concurrency {
		return 0
	}
	return min(max(c.hold/16, time.Millisecond), time.Minute)
}

// waitsTooLong reports whether a delivery has waited for its handler for a quarter of the time
// that it may be held, because otherwise the broker's consumer timeout would take deliveries back
// whose handlers have not begun (F16). The prefetch is as low as possible from then on. Suspects
// wait for each other, and a lower prefetch would not change that: they only go back.
func (s *Subscription) waitsTooLong(c *Channel, in *intake) bool {
	calm, isCalm := s.places.calmSince()
	if !isCalm || s.outage.active.Load() {
		return false
	}
	waits := func(suspect bool) (time.Duration, bool) {
		at, waiting := in.oldest(suspect)
		if calm.After(at) { // handlers could not begin before, because messages could not be stored
			at = calm
		}
		waited := time.Since(at)
		return waited, waiting && waited >= c.hold/4
	}
	if waited, long := waits(false); long && !s.slow {
		s.slow = true
		s.logger.Info("Messages wait long for their handler in this process: no more are taken from the "+
			"queue than handlers run; name a prefetch with topology.WithPrefetch to keep it",
			watermill.LogFields{
				"waited": waited, "prefetch_before": s.cfg.Consume.Prefetch,
				"prefetch": s.cfg.Consume.Concurrency,
			})
		return true
	}
	waited, long := waits(true)
	if long {
		s.logger.Info("Suspects of a crash wait long for their turn in this process: the messages "+
			"that no handler has go back to their queue", watermill.LogFields{"waited": waited})
	}
	return long
}

// keepsUp reports whether handlers were quick for a quarter of the time that a delivery may be
// held: with the full prefetch no delivery would have waited for half as long. The prefetch is
// full again from then on. A time in which no handler has had a message says nothing.
func (s *Subscription) keepsUp(c *Channel, in *intake) bool {
	if !s.slow {
		return false
	}
	cfg := &s.cfg.Consume
	since, ended, longest := s.inHand.seen()
	if at, waiting := in.oldest(false); waiting { // for a place, or for the pace of a brake
		longest = max(longest, time.Since(at))
	}
	if longest >= c.hold/8/time.Duration(cfg.Prefetch)*time.Duration(cfg.Concurrency) {
		s.inHand.reset()
		return false
	}
	if ended == 0 || time.Since(since) < c.hold/4 {
		return false
	}
	s.slow = false
	s.logger.Info("Handlers are quick again in this process: more messages are taken from the queue "+
		"than handlers run",
		watermill.LogFields{
			"longest": longest, "prefetch_before": cfg.Concurrency, "prefetch": cfg.Prefetch,
		})
	return true
}

// noteNarrow logs once that the prefetch leaves no delivery to handle while the copy of a
// failed message waits for its confirm.
func (s *Subscription) noteNarrow() {
	cfg := &s.cfg.Consume
	if cfg.PrefetchBy != ByQos || cfg.Prefetch > cfg.Concurrency {
		return
	}
	s.narrow.Do(func() {
		s.logger.Info("The prefetch limits the rate: a failed message frees its place for the next "+
			"one, but the broker sends none before the confirm; name a prefetch above "+
			"topology.WithConcurrency with topology.WithPrefetch",
			watermill.LogFields{"prefetch": cfg.Prefetch, "concurrency": cfg.Concurrency})
	})
}

// maxAsked bounds the list of delays that a warning names.
const maxAsked = 16

// Rounding remembers the delays that were asked for until one of them was rounded up by more
// than a tenth: there is no wait queue for the delay.
type Rounding struct {
	mu     sync.Mutex
	asked  []time.Duration // so far, distinct
	logged bool
}

// Note notes a delay that a message has asked for, and logs once that a delay was rounded up. way
// says how a delay gets a wait queue.
func (r *Rounding) Note(
	logger watermill.LoggerAdapter, waits *Waits, asked time.Duration, way string,
) {
	given := waits.Given(asked)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.logged {
		return
	}
	if len(r.asked) < maxAsked && !slices.Contains(r.asked, asked) {
		r.asked = append(r.asked, asked)
	}
	// A message that is snoozed for as short as possible asks for a millisecond.
	if given-asked <= asked/10 || asked <= time.Millisecond {
		return
	}
	r.logged = true
	fields := watermill.LogFields{"asked": asked, "delay": given, "delays_asked": r.asked}
	if waits.Resolution > 0 {
		logger.Error("Warning: a delay is rounded up by more than a tenth to a multiple of the "+
			"resolution; give topology.Levels a smaller Resolution", seam.ErrNotYet,
			fields.Add(watermill.LogFields{"resolution": waits.Resolution}))
		return
	}
	logger.Error("Warning: a delay is rounded up by more than a tenth, because it has no wait "+
		"step; "+way, seam.ErrNotYet, fields.Add(watermill.LogFields{"wait_steps": waits.Steps}))
}

// noteRounding notes a delay that a DelayedRetry has asked for. The Subscriber may not know the
// policy, or the error asked for the delay.
func (s *Subscription) noteRounding(asked time.Duration) {
	s.rounding.Note(s.logger, &s.cfg.Waits, asked, "give the Subscriber the policy, list the "+
		"delays of a policy of your own in its Delays, and name a delay that an error asks for as a "+
		"backoff.List in topology.ForPolicy")
}

// logRounds logs once that a delay is longer than all wait queues.
func (s *Subscription) logRounds(delay, longest time.Duration) {
	s.rounds.Do(func() {
		s.logger.Info("A delay is longer than every wait queue: the message comes back to its queue "+
			"after each round and waits again; add a longer delay with topology.ForPolicy, or bound the "+
			"delays that RetryAfter and RetryAfterHeader may ask for",
			watermill.LogFields{"delay": delay, "longest": longest})
	})
}

// logLowered logs once that a message waits with a lower priority than its own.
func (s *Subscription) logLowered(priority uint8) {
	s.lowered.Do(func() {
		s.logger.Info("A message of a priority above 4 waits with priority 4, because RabbitMQ 4.0 "+
			"lets higher priorities hold up all other messages in a quorum wait queue: its handler sees "+
			"its own priority, but the message joins its queue again with priority 4; if its place in "+
			"the queue matters, use topology.Classic wait queues",
			watermill.LogFields{"priority": priority})
	})
}
