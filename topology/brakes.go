package topology

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/millpond-go/millpond/internal/seam"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// brakeWait is how long Subscribe waits for the state of its brakes.
const brakeWait = 2 * time.Second

// joinBrakes joins the other instances of the brakes for a subscription of the queue, and waits
// until their states are known. leave must be called when the subscription has ended.
func (c *Client) joinBrakes(
	ctx context.Context, brakes []seam.Brake, queue string,
) (leave func(), err error) {
	var joined []func()
	leave = func() {
		for _, leave := range joined {
			leave()
		}
	}
	limit, cancel := context.WithTimeout(ctx, brakeWait)
	defer cancel()
	for _, b := range brakes {
		ready, left, err := b.Join(c.host(), queue)
		if err != nil {
			leave()
			return nil, err
		}
		joined = append(joined, left)
		select {
		case <-ready:
		case <-limit.Done():
		}
		if ctx.Err() != nil {
			leave()
			return nil, context.Cause(ctx)
		}
	}
	return leave, nil
}

// host returns this Client for its brakes.
func (c *Client) host() seam.Host {
	return seam.Host{
		Owner: c, Link: c.link, Instance: c.instance(), Logger: c.opts.logger,
		Provisioned: c.opts.provisioned, ControlUsers: c.opts.controlUsers,
		Tell: func(state header.BrakeState, at time.Time, probing bool) {
			kind := middleware.EventBudgetOpened
			if state.Stopped {
				kind = middleware.EventBudgetClosed
			}
			c.group.Observers.Tell(context.Background(), middleware.Event{
				Kind: kind, At: at, Brake: &state, Probing: probing,
			})
		},
	}
}

// instance names this process for people and for the other instances.
func (c *Client) instance() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s@%s/%d-%04x", c.opts.name, host, os.Getpid(), rand.N(1<<16))
}

// gate returns the function that makes the gate of a queue; nil without brakes.
func (o *subscriberOptions) gate() func() seam.Gate {
	if len(o.brakes) == 0 {
		return nil
	}
	return func() seam.Gate { return o.brakes[0].Gate(o.brakes) }
}
