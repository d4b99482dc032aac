package middleware

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/brake"
	"github.com/millpond-go/millpond/middleware/header"
)

// BudgetConfig says when failures and retries have cost a downstream service enough. Share,
// Retries or both must be set.
type BudgetConfig struct {
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

	// Brake stops consuming in all instances while Share keeps the budget of one of them closed;
	// see Budget. It needs Share and excludes DeadLetter.
	//
	// Default: false, the budget of each process is its own, and consuming goes on.
	Brake bool
	// Name of the brake: the instances whose budgets have the same name in the same vhost stop
	// and start together. At most 200 bytes, printable.
	//
	// Default: the queue of the Subscriber. A budget that serves several queues must have a name.
	Name string
	// Probe says how long to pause before each probe of the downstream. Its Count is one more
	// than the probes in a row that did not succeed. A policy that ends repeats its last delay.
	//
	// Default: 500 ms, doubled after each failure up to 1.25 s, and up to a tenth longer.
	Probe backoff.Policy
	// Successes in a row let the instances consume again.
	//
	// Default: 3.
	Successes int
	// Ramp is the time in which the rate of all instances rises to the rate before the stop. After
	// that the rate is at most a quarter higher until the queue is drained, and rises slowly while
	// the queue does not become shorter.
	//
	// Default: 30 s.
	Ramp time.Duration
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
// With Brake, a budget that Share closes stops the queue: every Subscriber that topology.For has
// given the DelayedRetry stops consuming, in all instances that share the Name, within a second.
// Messages in progress are finished, and a failure among them spends no attempt. All others stay
// in their queue. One instance at a time probes with one real message at a time, and gives its turn
// to another one after 30 s if the handler hangs. A probe that fails spends no attempt. When enough
// probes in a row have succeeded, all instances consume again, and their rate ramps up.
//
// The instances learn from each other through the broker alone. While that is not possible,
// because the broker refuses the queues of the brake for example, the budget works as without
// Brake, and says so once in the log.
//
// Many goroutines may use a Budget.
type Budget struct {
	cfg   BudgetConfig
	now   func() time.Time
	brake *brake.Brake // nil without Brake
	keys  *budgetKeys  // nil without Key

	mu     sync.Mutex
	window window
}

// NewBudget returns a budget that is open. One error lists everything that is wrong with the
// configuration.
func NewBudget(cfg BudgetConfig) (*Budget, error) {
	orDefault(&cfg.Window, 10*time.Second)
	orDefault(&cfg.Minimum, 20)
	orDefault(&cfg.Successes, 3)
	orDefault(&cfg.Ramp, 30*time.Second)
	orDefault(&cfg.Keys, 1000)
	if cfg.Probe == nil {
		cfg.Probe = backoff.BoundedJitter{
			Policy: backoff.Exponential{
				Initial: 500 * time.Millisecond, Factor: 2, Max: 1250 * time.Millisecond,
			}, Extra: 0.1, WaitSteps: 100,
		}
	}
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("new budget: %w", err)
	}
	b := &Budget{cfg: cfg, now: time.Now}
	b.window.cfg = &b.cfg
	if cfg.Brake {
		b.brake = brake.New(brake.Config{
			Name: cfg.Name, Pause: b.pause, Successes: cfg.Successes, Ramp: cfg.Ramp, Started: b.forget,
		})
	}
	if cfg.Key != nil {
		b.keys = newBudgetKeys(b)
	}
	return b, nil
}

func orDefault[T int | time.Duration](value *T, otherwise T) {
	if *value == 0 {
		*value = otherwise
	}
}

// check returns everything that is wrong with a configuration that has its defaults.
func (cfg *BudgetConfig) check() error {
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
		"successes": cfg.Successes, "keys": cfg.Keys,
	} {
		refuse(n < 0, "%s %d is negative", field, n)
	}
	refuse(cfg.Delay < 0 || cfg.Delay > backoff.MaxDelay,
		"delay %v is not between 0 and %v", cfg.Delay, backoff.MaxDelay)
	refuse(cfg.Ramp < 0, "ramp %v is negative", cfg.Ramp)
	refuse(cfg.Share == 0 && cfg.Retries == 0,
		"neither share nor retries is set: nothing would ever be over budget")
	refuse(cfg.Probes > 0 && cfg.Share == 0, "probes are for a budget with a share")
	refuse(cfg.DeadLetter && cfg.Probes > 0,
		"probes snooze the messages that DeadLetter gives up: set one of the two")
	refuse(cfg.Brake && cfg.Share == 0, "a brake is for a budget with a share")
	refuse(cfg.Brake && cfg.DeadLetter,
		"a brake keeps the messages that DeadLetter gives up: set one of the two")
	refuse(!cfg.Brake && (cfg.Name != "" || cfg.Key != nil), "Name and Key need Brake")
	refuse(len(cfg.Name) > 200 || !utf8.ValidString(cfg.Name) ||
		strings.ContainsFunc(cfg.Name, func(r rune) bool { return !unicode.IsPrint(r) }),
		"name %.300q is longer than 200 bytes or not printable", cfg.Name)
	if err := backoff.Validate(cfg.Probe); err != nil {
		problems = append(problems, fmt.Errorf("probe: %w", err))
	}
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

// pause is the pause before a probe, after so many in a row that did not succeed.
func (b *Budget) pause(failed int) time.Duration {
	count := failed + 1
	if most, known := backoff.MaxRetries(b.cfg.Probe); known {
		count = max(1, min(count, most))
	}
	pause := panicDelay
	contain(func() {
		now := b.now()
		d, retry := backoff.Next(b.cfg.Probe, backoff.Failure{Count: count, First: now, Now: now})
		if retry {
			pause = d
		}
	})
	return pause
}

// forget forgets all counts, because the brake has started.
func (b *Budget) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.window = window{cfg: &b.cfg}
}

// handled counts a delivery whose handler has returned. While the brake is stopped only the
// result of a probe counts.
func (b *Budget) handled(failed, probe bool) budgetChange {
	if b.stopped() {
		if probe {
			b.brake.Judge(!failed)
		}
		return budgetChange{}
	}
	now := b.now()
	if b.brake != nil && !failed {
		b.brake.Succeeded(now)
	}
	b.mu.Lock()
	change := b.window.count(now, func(s *windowSlice) {
		s.deliveries++
		if failed {
			s.failed++
		}
	})
	failing := b.window.failing
	b.mu.Unlock()
	if failing && b.inFleet() {
		b.brake.Trip(fmt.Sprintf("%d of %d deliveries failed within %v",
			change.failed, change.deliveries, b.cfg.Window))
		return budgetChange{} // the brake reports it
	}
	return change
}

// grant counts a retry if the window grants it, and reports whether it does.
func (b *Budget) grant() (granted bool, change budgetChange) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change = b.window.count(b.now(), func(s *windowSlice) {
		if granted = !b.window.closed; granted {
			s.retries++
		}
	})
	return granted, change
}

// admit reports whether a delivery goes on to its handler.
func (b *Budget) admit() (admitted bool, change budgetChange) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change = b.window.count(b.now(), func(s *windowSlice) {
		failing := b.window.failing
		if admitted = !failing || b.window.probes() < b.cfg.Probes; admitted && failing {
			s.probes++
		}
	})
	return admitted, change
}
