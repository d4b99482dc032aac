// Package backoff decides when to try again.
//
// A [Policy] is an immutable value and a pure function: it looks at a
// [Failure] and answers how long to wait, or that there shall be no retry. It
// holds no counter, reads no clock and starts no goroutine, so one value may
// serve every message of every queue at once.
//
//	failure 1 ──► Delay ──► 1s ──► attempt 2
//	failure 2 ──► Delay ──► 2s ──► attempt 3
//	failure 3 ──► Delay ──► no retry
//
// Policies are plain values. Some are a series of delays: [List], [Constant],
// [Linear], [Exponential], [Fibonacci], [None]. Others are made of policies:
// [Limit] bounds the retries, [Cap] the delays, [MaxAge] the age of the message,
// [ByError] chooses by the error, and [Unbounded] says that there shall be no end.
// [FullJitter], [EqualJitter] and [BoundedJitter] draw at random around the delays of
// another policy, [DecorrelatedJitter] between the last delay and thrice as long.
// [PolicyFunc] is any function, [FromCenkalti] any BackOff of cenkalti/backoff.
//
//	policy := backoff.Exponential{
//		Initial: time.Second,
//		Factor:  10,
//		Max:     500 * time.Second,
//		Retries: 5, // 1s 10s 100s 500s 500s
//	}
//	if err := errors.Join(backoff.Validate(policy), backoff.CheckEnd(policy)); err != nil {
//		return err
//	}
//	wait, retry := backoff.Next(policy, backoff.Failure{Count: 3}) // 100s, true
//
// Retries counts retries, not attempts: a policy with five of them allows six
// attempts in all. Every delay lies within 1 ms and [MaxDelay].
//
// A policy of your own needs only the one method. It may tell more about
// itself through optional methods, which [Validate], [CheckEnd], [Delays] and
// [Remarks] look for.
//
// The package does not wait, and knows neither messages nor brokers.
package backoff
