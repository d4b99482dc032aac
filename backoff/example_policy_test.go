package backoff_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/millpond-go/millpond/backoff"
)

// QuickFirst is a policy of a user: the first retry comes soon, the others as another policy says.
type QuickFirst struct {
	First time.Duration
	Then  backoff.Policy
}

// Delay returns First after the first failure. Then counts the failures after it.
func (p QuickFirst) Delay(f backoff.Failure) (wait time.Duration, retry bool) {
	if f.Count == 1 {
		return p.First, true
	}
	f.Count--
	return backoff.Next(p.Then, f)
}

// Delays lists every delay, so that each gets its wait queue. Nil means unknown.
func (p QuickFirst) Delays() []time.Duration {
	delays, known := backoff.Delays(p.Then)
	if !known {
		return nil
	}
	return append(delays, p.First)
}

// CheckEnd returns nil if the policy stops by itself. A wrapper asks the policy inside.
func (p QuickFirst) CheckEnd() error { return backoff.CheckEnd(p.Then) }

// Validate adds to the problems of the policy inside.
func (p QuickFirst) Validate() error {
	var problem error
	if p.First <= 0 {
		problem = fmt.Errorf("QuickFirst: First is %v, not positive", p.First)
	}
	return errors.Join(problem, backoff.Validate(p.Then))
}

// A policy of a user, with the optional methods.
func ExamplePolicy() {
	var policy backoff.Policy = QuickFirst{
		First: 100 * time.Millisecond,
		Then:  backoff.Constant{Interval: time.Minute, Retries: 2},
	}
	for count := 1; ; count++ {
		wait, retry := backoff.Next(policy, backoff.Failure{Count: count})
		if !retry {
			break
		}
		fmt.Println(wait)
	}
	delays, known := backoff.Delays(policy)
	fmt.Println(delays, known, backoff.CheckEnd(policy), backoff.Validate(policy))
	fmt.Println(backoff.Validate(QuickFirst{Then: backoff.None{}}))
	// Output:
	// 100ms
	// 1m0s
	// 1m0s
	// [100ms 1m0s] true <nil> <nil>
	// QuickFirst: First is 0s, not positive
}
