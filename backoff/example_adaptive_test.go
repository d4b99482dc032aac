package backoff_test

import (
	"fmt"
	"time"

	"github.com/millpond-go/millpond/backoff"
)

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
