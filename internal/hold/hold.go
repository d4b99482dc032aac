// Package hold keeps a goroutine at one task while the broker or the network is out of order:
// try, pause, try again, until the task succeeds or holding is over.
//
// The pauses double from half a second to five seconds. So an outage costs at most two tries a
// second, and its end is noticed within five seconds.
package hold

import (
	"context"
	"errors"
	"time"
)

// The ends of a hold. Do joins one of them with the error of the last try.
var (
	// ErrGone says that ctx is done or Options.Gone is closed.
	ErrGone = errors.New("the message is gone")
	// ErrStopped says that Options.Stop is closed.
	ErrStopped = errors.New("stopped holding")
	// ErrLimit says that the next try would begin after Options.Until.
	ErrLimit = errors.New("held for as long as allowed")
)

const (
	defaultFirstPause = 500 * time.Millisecond
	defaultMaxPause   = 5 * time.Second
	// reportEvery keeps the log of a long outage short.
	reportEvery = time.Minute
)

// Options limit a hold and name the functions that are told of it. The zero value holds until
// ctx is done.
type Options struct {
	// Gone is closed when there is nothing left to hold: no further try begins, not even the
	// first. Default: never.
	Gone <-chan struct{}
	// Stop is closed when time is short: no further try begins, but the first is still made.
	// Default: never.
	Stop <-chan struct{}
	// Until is when the last try may begin; the first may begin later. Default: no limit.
	Until time.Time
	// FirstPause is the pause after the first try; each further pause is twice as long.
	// Default: 500 ms.
	FirstPause time.Duration
	// MaxPause is the longest pause. Default: 5 s.
	MaxPause time.Duration
	// Final reports that another try after err cannot help. Default: it can.
	Final func(err error) bool
	// Failed is told of every failed try, also of the last. Default: none is told.
	Failed func(err error, tries int, held time.Duration)
	// Failing is told of the first failed try that another try follows, and then of one try a
	// minute at most. Default: none is told.
	Failing func(err error, tries int, held time.Duration)
	// Recovered is told of a success after failed tries. Default: none is told.
	Recovered func(tries int, held time.Duration)
}

// Do calls try until it returns nil, and then returns nil. Otherwise it returns the last error:
// as it is if it is final, or joined with ErrGone (and the cause of ctx), ErrStopped or
// ErrLimit. Do never cuts a try short: try must limit its own time.
func Do(ctx context.Context, o Options, try func() error) error {
	pause := orDefault(o.FirstPause, defaultFirstPause)
	maxPause := orDefault(o.MaxPause, defaultMaxPause)
	var began, reported time.Time
	var last error

	for tries := 1; ; tries++ {
		if over := o.over(ctx, tries); over != nil {
			return errors.Join(last, over)
		}
		last = try()
		if last == nil {
			if tries > 1 && o.Recovered != nil {
				o.Recovered(tries, time.Since(began))
			}
			return nil
		}
		now := time.Now()
		if tries == 1 {
			began = now
		}
		if o.Failed != nil {
			o.Failed(last, tries, now.Sub(began))
		}
		if o.Final != nil && o.Final(last) {
			return last
		}
		if over := o.over(ctx, tries+1); over != nil {
			return errors.Join(last, over)
		}
		if !o.Until.IsZero() && now.Add(pause).After(o.Until) {
			return errors.Join(last, ErrLimit)
		}
		if o.Failing != nil && (tries == 1 || now.Sub(reported) >= reportEvery) {
			o.Failing(last, tries, now.Sub(began))
			reported = now
		}
		o.wait(ctx, pause)
		pause = min(2*pause, maxPause)
	}
}

// over says why the given try must not begin; nil if it may.
func (o *Options) over(ctx context.Context, try int) error {
	if ctx.Err() != nil {
		return errors.Join(ErrGone, context.Cause(ctx))
	}
	if closed(o.Gone) {
		return ErrGone
	}
	if try > 1 && closed(o.Stop) {
		return ErrStopped
	}
	return nil
}

// wait returns after d, or as soon as the hold may be over.
func (o *Options) wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-o.Gone:
	case <-o.Stop:
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}
