// Package outage has the brake of a budget.Budget.
package outage

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/brake"
	"github.com/millpond-go/millpond/internal/seam"
)

// Brake stops consuming while its budget is closed: every Subscriber that topology.For has given
// the DelayedRetry stops, in all instances that share the Name, within a second. Messages in
// progress are finished, and a failure among them spends no attempt. All others stay in their
// queue. One instance at a time probes with one real message at a time, and gives its turn to
// another one after 30 s if the handler hangs. A probe that fails spends no attempt. When enough
// probes in a row have succeeded, all instances consume again, and their rate ramps up.
//
// The instances learn from each other through the broker alone. While that is not possible,
// because the broker refuses the queues of the brake for example, the budget works as without
// a brake, and says so once in the log.
type Brake struct {
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
}

// NewBrake is for budget.New. One error lists everything that is wrong with b.
func (b Brake) NewBrake(started func()) (seam.Brake, error) {
	if b.Successes == 0 {
		b.Successes = 3
	}
	if b.Ramp == 0 {
		b.Ramp = 30 * time.Second
	}
	if b.Probe == nil {
		b.Probe = backoff.BoundedJitter{
			Policy: backoff.Exponential{
				Initial: 500 * time.Millisecond, Factor: 2, Max: 1250 * time.Millisecond,
			}, Extra: 0.1, WaitSteps: 100,
		}
	}
	if err := b.check(); err != nil {
		return nil, err
	}
	return &part{
		Brake: brake.New(brake.Config{
			Name: b.Name, Pause: b.pause, Successes: b.Successes, Ramp: b.Ramp, Started: started,
		}),
		cfg: b,
	}, nil
}

func (b Brake) check() error {
	var problems []error
	if b.Successes < 0 {
		problems = append(problems, fmt.Errorf("successes %d is negative", b.Successes))
	}
	if b.Ramp < 0 {
		problems = append(problems, fmt.Errorf("ramp %v is negative", b.Ramp))
	}
	if len(b.Name) > 200 || !utf8.ValidString(b.Name) ||
		strings.ContainsFunc(b.Name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		problems = append(problems,
			fmt.Errorf("name %.300q is longer than 200 bytes or not printable", b.Name))
	}
	if err := backoff.Validate(b.Probe); err != nil {
		problems = append(problems, fmt.Errorf("probe: %w", err))
	}
	return errors.Join(problems...)
}

// pause is the pause before a probe, after so many in a row that did not succeed. A policy that
// panics stands for a minute.
func (b Brake) pause(failed int) (pause time.Duration) {
	count := failed + 1
	if most, known := backoff.MaxRetries(b.Probe); known {
		count = max(1, min(count, most))
	}
	pause = time.Minute
	defer func() { _ = recover() }()
	now := time.Now()
	if d, retry := backoff.Next(b.Probe, backoff.Failure{Count: count, First: now, Now: now}); retry {
		pause = d
	}
	return pause
}
