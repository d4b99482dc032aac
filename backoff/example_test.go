package backoff_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"time"

	cenkalti "github.com/cenkalti/backoff/v4"

	"github.com/millpond-go/millpond/backoff"
)

// The delays of each series.
func Example_series() {
	for _, policy := range []backoff.Policy{
		backoff.None{},
		backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second},
		backoff.List{5 * time.Second, 2 * time.Minute, 30 * time.Minute, 6 * time.Hour, 48 * time.Hour},
		backoff.Constant{Interval: 5 * time.Second, Retries: 3},
		backoff.Linear{Initial: time.Second, Step: time.Second, Retries: 3},
		backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 4},
		backoff.Exponential{Initial: time.Second, Factor: 10, Max: 500 * time.Second, Retries: 5},
		backoff.Fibonacci{Initial: time.Second, Retries: 5},
	} {
		var series []time.Duration
		for count := 1; ; count++ {
			wait, retry := backoff.Next(policy, backoff.Failure{Count: count})
			if !retry {
				break
			}
			series = append(series, wait)
		}
		fmt.Println(series)
	}
	// Output:
	// []
	// [2s 5s 15s]
	// [5s 2m0s 30m0s 6h0m0s 48h0m0s]
	// [5s 5s 5s]
	// [1s 2s 3s]
	// [1s 2s 4s 8s]
	// [1s 10s 1m40s 8m20s 8m20s]
	// [1s 2s 3s 5s 8s]
}

func ExamplePolicyFunc() {
	errBusy := errors.New("busy")
	policy := backoff.PolicyFunc(func(f backoff.Failure) (time.Duration, bool) {
		return time.Minute, errors.Is(f.Err, errBusy)
	})
	fmt.Println(policy.Delay(backoff.Failure{Count: 1, Err: errBusy}))
	fmt.Println(policy.Delay(backoff.Failure{Count: 1, Err: errors.New("broken")}))
	// Output:
	// 1m0s true
	// 0s false
}

func ExampleNext() {
	policy := backoff.PolicyFunc(func(f backoff.Failure) (time.Duration, bool) {
		return -f.Last, true
	})
	fmt.Println(backoff.Next(policy, backoff.Failure{Count: 2, Last: time.Second}))
	fmt.Println(backoff.Next(nil, backoff.Failure{Count: 2}))
	// Output:
	// 1ms true
	// 0s false
}

func ExampleValidate() {
	fmt.Println(backoff.Validate(backoff.Limit{Policy: backoff.List{time.Second, 0}, Retries: -1}))
	// Output:
	// backoff.Limit: Retries -1 is negative: use 0 to never retry
	// backoff.List: entry [1] 0s is not positive: a delay is at least 1ms
}

func ExampleCheckEnd() {
	policy := backoff.Exponential{Initial: time.Second, Factor: 2}
	fmt.Println(errors.Is(backoff.CheckEnd(policy), backoff.ErrNoEnd))
	fmt.Println(backoff.CheckEnd(backoff.Limit{Policy: policy, Retries: 5}))
	fmt.Println(backoff.CheckEnd(backoff.Unbounded{Policy: policy}))
	// Output:
	// true
	// <nil>
	// <nil>
}

func ExampleDelays() {
	policy := backoff.Exponential{Initial: time.Second, Factor: 10, Max: 500 * time.Second, Retries: 5}
	fmt.Println(backoff.Delays(policy))
	fmt.Println(backoff.Delays(backoff.Exponential{Initial: time.Second, Factor: 10}))
	// Output:
	// [1s 10s 1m40s 8m20s] true
	// [] false
}

func ExampleRemarks() {
	policy := backoff.FullJitter{
		Policy: backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 4},
	}
	for _, remark := range backoff.Remarks(policy) {
		fmt.Println(strings.ReplaceAll(remark, " need", "\nneed"))
	}
	// Output:
	// backoff.FullJitter: topology.PerQueue and topology.Shared
	// need up to 10 wait queues instead of 4; WaitSteps sets the number for each delay
}

func ExampleMaxRetries() {
	endless := backoff.Exponential{Initial: time.Second, Factor: 2}
	fmt.Println(backoff.MaxRetries(backoff.List{time.Second, time.Minute}))
	fmt.Println(backoff.MaxRetries(endless))
	fmt.Println(backoff.MaxRetries(backoff.Limit{Policy: endless, Retries: 8}))
	// Output:
	// 2 true
	// 0 false
	// 8 true
}

func ExampleMaxMatchCount() {
	policy := backoff.ByError{
		Cases:   []backoff.Case{{Match: backoff.Is(io.EOF), Policy: backoff.List{time.Minute}}},
		Default: backoff.None{},
	}
	fmt.Println(backoff.MaxMatchCount(backoff.List{time.Minute}))
	fmt.Println(backoff.MaxMatchCount(policy) == math.MaxInt)
	fmt.Println(backoff.MaxMatchCount(backoff.Limit{Policy: policy, Retries: 8}))
	// Output:
	// 0
	// true
	// 8
}

func ExampleLimit() {
	policy := backoff.Limit{Policy: backoff.Exponential{Initial: time.Second, Factor: 3}, Retries: 2}
	fmt.Println(policy.Delay(backoff.Failure{Count: 2}))
	fmt.Println(policy.Delay(backoff.Failure{Count: 3}))
	// Output:
	// 3s true
	// 0s false
}

func ExampleAtOnce() {
	policy := backoff.AtOnce{Policy: backoff.Constant{Interval: 5 * time.Second, Retries: 2}}
	for count := 1; count <= 4; count++ {
		fmt.Println(policy.Delay(backoff.Failure{Count: count}))
	}
	fmt.Println(backoff.Delays(policy))
	// Output:
	// 0s true
	// 5s true
	// 5s true
	// 0s false
	// [5s] true
}

func ExampleCap() {
	policy := backoff.Cap{
		Policy: backoff.List{time.Second, time.Minute, time.Hour}, Max: 5 * time.Minute,
	}
	fmt.Println(policy.Delay(backoff.Failure{Count: 2}))
	fmt.Println(policy.Delay(backoff.Failure{Count: 3}))
	// Output:
	// 1m0s true
	// 5m0s true
}

func ExampleMaxAge() {
	policy := backoff.MaxAge{
		Policy: backoff.Exponential{Initial: time.Second, Factor: 2}, Age: 10 * time.Second,
	}
	first := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	after := func(count int, age time.Duration) backoff.Failure {
		return backoff.Failure{Count: count, First: first, Now: first.Add(age)}
	}
	fmt.Println(policy.Delay(after(3, 3*time.Second)))
	fmt.Println(policy.Delay(after(4, 7*time.Second)))
	fmt.Println(backoff.Delays(policy))
	fmt.Println(backoff.CheckEnd(policy))
	// Output:
	// 4s true
	// 0s false
	// [1s 2s 4s 8s] true
	// <nil>
}

func ExampleUnbounded() {
	policy := backoff.Unbounded{Policy: backoff.Constant{Interval: time.Minute}}
	fmt.Println(policy.Delay(backoff.Failure{Count: 1_000_000}))
	fmt.Println(backoff.CheckEnd(policy))
	// Output:
	// 1m0s true
	// <nil>
}

func ExampleByError() {
	policy := backoff.ByError{
		Cases: []backoff.Case{
			{Match: backoff.As[net.Error](), Policy: backoff.Constant{Interval: time.Second, Retries: 5}},
			{
				Match:  backoff.Is(errRateLimited),
				Policy: backoff.Constant{Interval: time.Minute, Retries: 10},
			},
			{
				Match:  backoff.As[*databaseError](),
				Policy: backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 8},
			},
		},
		Default: backoff.None{}, // to the dead-letter queue
	}
	for i, err := range []error{
		&net.DNSError{Err: "no such host", Name: "bank.example"},
		fmt.Errorf("charge: %w", errRateLimited), &databaseError{table: "orders"},
		errors.New("no such order"),
	} {
		fmt.Println(policy.Delay(backoff.Failure{Count: i + 1, Err: err}))
	}
	// Output:
	// 1s true
	// 1m0s true
	// 4s true
	// 0s false
}

func ExampleIs() {
	match := backoff.Is(io.EOF)
	fmt.Println(match(fmt.Errorf("read: %w", io.EOF)), match(io.ErrUnexpectedEOF))
	// Output: true false
}

func ExampleAs() {
	match := backoff.As[net.Error]()
	err := &net.DNSError{Name: "bank.example"}
	fmt.Println(match(fmt.Errorf("look up: %w", err)), match(io.EOF))
	// Output: true false
}

// In a test, a Seed makes the delays repeatable.
func ExampleFullJitter() {
	policy := backoff.FullJitter{
		Policy: backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 4},
		Seed:   7,
	}
	for count := 1; count <= 4; count++ {
		fmt.Println(policy.Delay(backoff.Failure{Count: count}))
	}
	fmt.Println(backoff.Delays(policy)) // the wait queues
	// Output:
	// 618ms true
	// 1.253s true
	// 3.213s true
	// 6.087s true
	// [250ms 500ms 750ms 1s 1.5s 2s 3s 4s 6s 8s] true
}

func ExampleEqualJitter() {
	policy := backoff.EqualJitter{Policy: backoff.List{10 * time.Second}, WaitSteps: 5}
	wait, retry := policy.Delay(backoff.Failure{Count: 1})
	fmt.Println(retry, wait >= 5*time.Second, wait <= 10*time.Second)
	fmt.Println(backoff.Delays(policy)) // the wait queues
	// Output:
	// true true true
	// [6s 7s 8s 9s 10s] true
}

func ExampleBoundedJitter() {
	policy := backoff.BoundedJitter{Policy: backoff.List{10 * time.Second, time.Minute}, Extra: 0.2}
	wait, retry := policy.Delay(backoff.Failure{Count: 1})
	fmt.Println(retry, wait >= 10*time.Second, wait <= 12*time.Second)
	fmt.Println(backoff.Delays(policy)) // the wait queues
	// Output:
	// true true true
	// [10.5s 11s 11.5s 12s 1m3s 1m6s 1m9s 1m12s] true
}

func ExampleDecorrelatedJitter() {
	policy := backoff.DecorrelatedJitter{
		Initial: time.Second, Max: 20 * time.Second, Retries: 10, WaitSteps: 2,
	}
	wait, retry := policy.Delay(backoff.Failure{Count: 4, Last: 5 * time.Second})
	fmt.Println(retry, wait >= time.Second, wait <= 15*time.Second)
	fmt.Println(backoff.Delays(policy)) // the wait queues
	// Output:
	// true true true
	// [2s 3s 6s 9s 14.5s 20s] true
}

func ExampleFromCenkalti() {
	policy := backoff.FromCenkalti(func() cenkalti.BackOff {
		return cenkalti.NewExponentialBackOff(cenkalti.WithInitialInterval(time.Second),
			cenkalti.WithMultiplier(2), cenkalti.WithRandomizationFactor(0))
	})
	for count := 1; count <= 3; count++ {
		fmt.Println(policy.Delay(backoff.Failure{Count: count}))
	}
	fmt.Println(strings.ReplaceAll(backoff.Remarks(policy)[0], ", ", ",\n"))
	// Output:
	// 1s true
	// 2s true
	// 4s true
	// backoff.FromCenkalti: the elapsed-time limit of 15m0s is the age of the message,
	// counted from its first failure
}

func ExampleWithMaxAge() {
	var limit backoff.CenkaltiOption = backoff.WithMaxAge(min(time.Hour, backoff.MaxDelay))
	policy := backoff.FromCenkalti(func() cenkalti.BackOff {
		return cenkalti.WithMaxRetries(cenkalti.NewConstantBackOff(time.Minute), 100)
	}, limit)
	first := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	for _, age := range []time.Duration{59 * time.Minute, 60 * time.Minute} {
		fmt.Println(policy.Delay(backoff.Failure{Count: 59, First: first, Now: first.Add(age)}))
	}
	// Output:
	// 1m0s true
	// 0s false
}

// The health of the service comes from package middleware/adaptive.
func ExampleAdaptive() {
	for _, recent := range []backoff.Recent{
		{},
		{Attempts: 1000, Failed: 10},
		{Attempts: 1000, Failed: 500},
		{Attempts: 1000, Failed: 900},
		{Attempts: 1000, Failed: 1000},
		{Attempts: 1000, Failed: 500, UntilSuccess: 10 * time.Second},
	} {
		policy := backoff.Adaptive{
			Policy: backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 4},
			Health: func(time.Time) backoff.Recent { return recent },
		}
		fmt.Printf("%4d of %d:", recent.Failed, recent.Attempts)
		for failures := 1; ; failures++ {
			wait, retry := backoff.Next(policy, backoff.Failure{Count: failures})
			if !retry {
				break
			}
			fmt.Print(" ", wait)
		}
		fmt.Println()
	}
	// Output:
	//    0 of 0: 1s 2s 4s 8s
	//   10 of 1000: 500ms 1s 2s 4s
	//  500 of 1000: 1s 2s 4s 8s
	//  900 of 1000: 4s 8s 16s 32s
	// 1000 of 1000: 8s 16s 32s 1m4s
	//  500 of 1000: 4s 4s 4s 8s
}
