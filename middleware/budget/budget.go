// Package budget slows retries down while too many deliveries fail.
package budget

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/nils"
	"github.com/millpond-go/millpond/internal/seam"
	"github.com/millpond-go/millpond/middleware/header"
)

// Config says when failures and retries have cost a downstream service enough. Share,
// Retries or both must be set.
type Config struct {
	// Window is the time over which the budget counts. At least 10 ms.
	//
	// Default: 10 s.
	Window time.Duration
	// Share of the deliveries in a window, above 0 and below 1. If more deliveries failed with
	// a retryable error, the budget closes. It opens at half the share, or after a window
	// without deliveries.
	//
	// Default: no share closes the budget.
	Share float64
	// Minimum is the number of deliveries in a window below which Share does not count.
	//
	// Default: 20.
	Minimum int
	// Retries is the number of retries that a window grants; further retries are over budget.
	//
	// Default: any number.
	Retries int
	// Delay of a retry that is over budget, unless the delay of its policy is longer. It is also
	// the delay of a message that Probes, Brake or Key sets aside.
	//
	// Default: the longest delay of the policies, which must be able to list their delays.
	Delay time.Duration
	// DeadLetter gives messages that are over budget up, with ReasonOverBudget, instead of
	// slowing them down.
	//
	// Default: false, no message is given up.
	DeadLetter bool
	// Probes is the number of deliveries that a window lets through to the handlers while Share
	// keeps the budget closed. The others are snoozed for Delay without an attempt, for as long
	// as WithSnoozeLimit allows. A budget with Brake needs none: its Probes count only while this
	// process cannot reach the other instances through the broker.
	//
	// Default: all go through, and only retries are slowed down.
	Probes int

	// Brake is an outage.Brake of package middleware/outage. It stops consuming in all instances
	// while Share keeps the budget of one of them closed. It needs Share and excludes DeadLetter.
	//
	// Default: none. The budget of each process is its own, and consuming goes on.
	Brake seam.Maker
	// Key returns the key of a message, for example a customer. The budget counts each key by
	// itself. While the budget of a key is closed, messages with this key are snoozed for Delay
	// without an attempt, one at a time probes, and all others are handled. The budget counts no
	// message with the key "". Key is called for each delivery by many goroutines, must be quick,
	// and must not change the message. A panic counts as "". It needs Brake.
	//
	// Default: all messages count together, and a closed budget stops the queue.
	Key func(msg *message.Message) string
	// Keys is the number of keys that are counted at once. Beyond that the key is forgotten that
	// was not seen for the longest time.
	//
	// Default: 1000.
	Keys int
}

// Budget slows retries down while too many deliveries fail, so that a downstream service that
// is out of order gets fewer calls from all handlers that share the budget. No message is lost
// by it. A retry that would come too late for WithMaxAge or the message's own expiration is not
// slowed down. It counts in a sliding window, in this process.
//
// Many goroutines may use a Budget.
type Budget struct {
	cfg   Config
	now   func() time.Time
	brake seam.Brake // nil without Brake
	keys  *keys      // nil without Key

	mu     sync.Mutex
	window window
}

// New returns a budget that is open. One error lists everything that is wrong with the
// configuration.
func New(cfg Config) (*Budget, error) {
	orDefault(&cfg.Window, 10*time.Second)
	orDefault(&cfg.Minimum, 20)
	orDefault(&cfg.Keys, 1000)
	if nils.Is(cfg.Brake) {
		cfg.Brake = nil
	}
	b := &Budget{cfg: cfg, now: time.Now}
	b.window.cfg = &b.cfg
	err := cfg.check()
	if cfg.Brake != nil {
		var wrong error
		if b.brake, wrong = cfg.Brake.NewBrake(b.forget); wrong != nil {
			err = errors.Join(err, fmt.Errorf("brake: %w", wrong))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("new budget: %w", err)
	}
	if cfg.Key != nil {
		b.keys = newKeys(b)
	}
	return b, nil
}

func orDefault[T int | time.Duration](value *T, otherwise T) {
	if *value == 0 {
		*value = otherwise
	}
}

// check returns everything that is wrong with a configuration that has its defaults.
func (cfg *Config) check() error {
	var problems []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	refuse(cfg.Window < windowSlices*time.Millisecond,
		"window %v is shorter than %v", cfg.Window, windowSlices*time.Millisecond)
	// Also NaN.
	refuse(!(cfg.Share >= 0 && cfg.Share < 1), "share %v is not between 0 and 1", cfg.Share)
	for field, n := range map[string]int{
		"minimum": cfg.Minimum, "retries": cfg.Retries, "probes": cfg.Probes,
		"keys": cfg.Keys,
	} {
		refuse(n < 0, "%s %d is negative", field, n)
	}
	refuse(cfg.Delay < 0 || cfg.Delay > backoff.MaxDelay,
		"delay %v is not between 0 and %v", cfg.Delay, backoff.MaxDelay)
	refuse(cfg.Share == 0 && cfg.Retries == 0,
		"neither share nor retries is set: nothing would ever be over budget")
	refuse(cfg.Probes > 0 && cfg.Share == 0, "probes are for a budget with a share")
	refuse(cfg.DeadLetter && cfg.Probes > 0,
		"probes snooze the messages that DeadLetter gives up: set one of the two")
	refuse(cfg.Brake != nil && cfg.Share == 0, "a brake is for a budget with a share")
	refuse(cfg.Brake != nil && cfg.DeadLetter,
		"a brake keeps the messages that DeadLetter gives up: set one of the two")
	refuse(cfg.Brake == nil && cfg.Key != nil, "Key needs Brake")
	return errors.Join(problems...)
}

// Closed reports whether retries are over budget, by either limit, or the brake is stopped.
func (b *Budget) Closed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stopped() || b.window.sum(b.now()).closed
}

// Counts returns the deliveries that were handled in the window, the deliveries that failed
// with a retryable error, and the retries that were granted. All are 0 with Key.
func (b *Budget) Counts() (deliveries, failed, retries int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.window.sum(b.now())
	return s.deliveries, s.failed, s.retries
}

// State returns the state of the brake, as this process knows it. It is zero without Brake.
func (b *Budget) State() header.BrakeState {
	if b.brake == nil {
		return header.BrakeState{}
	}
	return b.brake.State()
}

// stopped reports whether the brake is stopped.
func (b *Budget) stopped() bool { return b.brake != nil && b.brake.Stopped() }

// inFleet reports whether other instances hear of a stop.
func (b *Budget) inFleet() bool { return b.brake != nil && b.brake.Joined() }

// forget forgets all counts, because the brake has started.
func (b *Budget) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.window = window{cfg: &b.cfg}
}

// Seam is for middleware.WithBudget.
func (b *Budget) Seam() seam.Budget { return plug{b} }

// plug is a Budget as middleware sees it.
type plug struct{ *Budget }

func (p plug) Delay() time.Duration { return p.cfg.Delay }
func (p plug) GivesUp() bool        { return p.cfg.DeadLetter }
func (p plug) Keyed() bool          { return p.keys != nil }
func (p plug) Brake() seam.Brake    { return p.brake }

// Admit reports whether a delivery goes on to its handler, and whether it is a probe of its key.
func (p plug) Admit(key string) (admitted, probe bool, change seam.Change) {
	if p.keys != nil {
		admitted, probe = p.keys.admit(key)
		return admitted, probe, change
	}
	if p.cfg.Probes == 0 || p.inFleet() {
		return true, false, change
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	change = p.window.count(p.now(), func(s *windowSlice) {
		failing := p.window.failing
		if admitted = !failing || p.window.probes() < p.cfg.Probes; admitted && failing {
			s.probes++
		}
	})
	return admitted, false, change
}

// Handled counts a delivery whose handler has returned. While the brake or the key is stopped only
// the result of a probe counts.
func (p plug) Handled(h seam.Handled) seam.Change {
	stopped := p.stopped()
	if stopped && h.Probe { // with keys an operator has stopped the brake
		p.brake.Judge(!h.Failed)
	}
	if p.keys != nil {
		return p.keys.handled(h.Key, h.Failed, h.KeyProbe)
	}
	if stopped {
		return seam.Change{}
	}
	now := p.now()
	if p.brake != nil && !h.Failed {
		p.brake.Succeeded(now)
	}
	p.mu.Lock()
	change := p.window.count(now, func(s *windowSlice) {
		s.deliveries++
		if h.Failed {
			s.failed++
		}
	})
	failing := p.window.failing
	p.mu.Unlock()
	if failing && p.inFleet() {
		p.brake.Trip(fmt.Sprintf("%d of %d deliveries failed within %v",
			change.Failed, change.Deliveries, p.cfg.Window))
		return seam.Change{} // the brake reports it
	}
	return change
}

func (p plug) Undecided(key string) { p.keys.undecided(key) }

// Stopped reports whether the brake, or the key, is stopped.
func (p plug) Stopped(key string) bool {
	return p.stopped() || p.keys != nil && p.keys.isStopped(key)
}

// Grant counts a retry if the window grants it, and reports whether it does.
func (p plug) Grant() (granted bool, change seam.Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change = p.window.count(p.now(), func(s *windowSlice) {
		if granted = !p.window.closed; granted {
			s.retries++
		}
	})
	return granted, change
}
