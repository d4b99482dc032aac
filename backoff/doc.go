// Package backoff decides when to try again. It does not wait, and knows neither
// messages nor brokers.
//
// A [Policy] is an immutable value with one method. Delay looks at a [Failure] and returns how long
// to wait, or that there is no retry. A policy holds no counter, reads no clock and starts no
// goroutine, so that one value serves every message of every queue at once.
//
//	failure 1 ──► Delay ──► 1s ──► attempt 2
//	failure 2 ──► Delay ──► 2s ──► attempt 3
//	failure 3 ──► Delay ──► no retry
//
// Some policies are a series of delays: [List], [Constant], [Linear],
// [Exponential], [Fibonacci] and [None].
//
// Others wrap a policy: [Limit] bounds the retries, [Cap] the delays, [MaxAge] the age of the
// message. [ByError] chooses by the error. [AtOnce] adds a first retry without a delay.
// [Unbounded] says that no end is wanted. [Adaptive] makes the delays longer while a downstream
// service fails, and shorter while it works.
//
// Jitters draw at random: [FullJitter], [EqualJitter] and [BoundedJitter] around
// the delays of another policy, [DecorrelatedJitter] between the first delay and
// three times the last one. A drawn delay needs several wait queues: see WaitSteps.
//
// [PolicyFunc] makes a function a policy, and [FromCenkalti] does so with any
// BackOff of cenkalti/backoff.
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
// Retries counts retries, not attempts: a policy with five retries allows six
// attempts in all. Every delay lies within 1 ms and [MaxDelay]; only the first may be 0.
//
// A policy of your own needs only Delay. Optional methods tell more about it:
// [Validate], [CheckEnd], [Delays] and [Remarks] look for them. The policies of this
// package have no such methods: ask these functions.
package backoff
