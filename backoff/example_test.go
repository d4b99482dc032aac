package backoff_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/millpond-go/millpond/backoff"
)

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
	policy := backoff.PolicyFunc(func(f backoff.Failure) (time.Duration, bool) { return -f.Last, true })
	fmt.Println(backoff.Next(policy, backoff.Failure{Count: 2, Last: time.Second}))
	fmt.Println(backoff.Next(nil, backoff.Failure{Count: 2}))
	// Output:
	// 1ms true
	// 0s false
}

func ExampleValidate() {
	fmt.Println(backoff.Validate(backoff.Limit{
		Policy:  backoff.List{time.Second, 0},
		Retries: -1,
	}))
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
	fmt.Println(backoff.Delays(backoff.Exponential{Initial: time.Second, Factor: 10, Max: 500 * time.Second, Retries: 5}))
	fmt.Println(backoff.Delays(backoff.Exponential{Initial: time.Second, Factor: 10}))
	// Output:
	// [1s 10s 1m40s 8m20s] true
	// [] false
}

func ExampleRemarks() {
	for _, remark := range backoff.Remarks(backoff.Unbounded{Policy: backoff.Constant{Interval: time.Minute}}) {
		fmt.Println(remark)
	}
	// Output:
	// backoff.Unbounded: the policy has no end; a message that keeps failing is retried until something else stops it
}
