package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millpond-go/millpond/topology"
)

// RepeatOptions say how RampEvery repeats a Ramp.
type RepeatOptions struct {
	RampOptions
	// Every is the time from the end of a run to the start of the next. At least 1 s. Default: 10 min.
	Every time.Duration
	// UntilEmpty ends RampEvery when a run finds no letter to replay, or has seen all its letters
	// handled and none left, also none beyond Limit. Default: it goes on until ctx is done.
	UntilEmpty bool
	// Ran is called with the outcome of each run. Default: no call.
	Ran func(RampResult, error)
}

const (
	defaultEvery      = 10 * time.Minute
	defaultMaxReplays = 5
)

// RampEvery replays dead letters by themselves, without a storm: run after run of Ramp, each with
// its canary. A run that has stopped is no error, and the next one begins with its canary again, so
// that during an outage an interval costs as few letters as the canary has. A letter that failed
// again is not replayed again before the next run, and not more than MaxReplays times in its life.
// The oldest letters are the canary, and a letter that is dead again is the youngest, so that
// letters which always fail do not keep the others from their turn for long.
//
// A broker that cannot be reached is tried again by the next run. RampEvery returns the cause of
// ctx, nil with UntilEmpty, and errors that another run cannot mend: ErrInvalidOptions, ErrNoQueue
// and ErrUnsafePeek.
func (o *Operator) RampEvery(
	ctx context.Context, plan topology.Plan, options RepeatOptions,
) error {
	every := cmp.Or(options.Every, defaultEvery)
	options.MaxReplays = cmp.Or(options.MaxReplays, defaultMaxReplays)
	if every < time.Second {
		return fmt.Errorf("replay dead letters of queue %q: %w: every %v: at least 1s",
			plan.Queue, ErrInvalidOptions, every)
	}
	for {
		run, err := o.runRamp(ctx, plan, options.RampOptions)
		r := run.result
		if options.Ran != nil {
			options.Ran(r, err)
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("replay dead letters of queue %q: %w", plan.Queue, context.Cause(ctx))
		case errors.Is(err, ErrInvalidOptions), errors.Is(err, ErrNoQueue),
			errors.Is(err, ErrUnsafePeek), errors.Is(err, topology.ErrClosed):
			return err
		case options.UntilEmpty && err == nil && r.Started == r.Handled && run.left() == 0:
			return nil
		}
		if err := sleep(ctx, every); err != nil {
			return fmt.Errorf("replay dead letters of queue %q: %w", plan.Queue, err)
		}
	}
}
