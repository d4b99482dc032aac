package topology

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/internal/brake"
	"github.com/millpond-go/millpond/internal/fleet"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// brakeWait is how long Subscribe waits for the state of its brakes.
const brakeWait = 2 * time.Second

// crew is the part of this Client in the fleet of one brake.
type crew struct {
	member *fleet.Member
	leave  context.CancelFunc
	ended  chan struct{}
	users  int // subscriptions
}

// joinFleets joins the fleets of the brakes for a subscription of the queue, and waits until their
// states are known. leave must be called when the subscription has ended.
func (c *Client) joinFleets(
	ctx context.Context, brakes []*brake.Brake, queue string,
) (leave func(), err error) {
	var joined []*brake.Brake
	leave = func() {
		for _, b := range joined {
			c.leaveFleet(b)
		}
	}
	limit, cancel := context.WithTimeout(ctx, brakeWait)
	defer cancel()
	for _, b := range brakes {
		member, err := c.joinFleet(b, queue)
		if err != nil {
			leave()
			return nil, err
		}
		joined = append(joined, b)
		select {
		case <-member.Ready():
		case <-limit.Done():
		}
		if ctx.Err() != nil {
			leave()
			return nil, context.Cause(ctx)
		}
	}
	return leave, nil
}

func (c *Client) joinFleet(b *brake.Brake, queue string) (*fleet.Member, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if in, ok := c.crews[b]; ok {
		if !b.Serves(queue) {
			return nil, fmt.Errorf("a Budget with Brake serves queue %q and others: give its "+
				"BudgetConfig a Name", queue)
		}
		in.users++
		return in.member, nil
	}
	if c.closed {
		return nil, ErrClosed
	}
	if !b.Claim(c) {
		return nil, errors.New("a Budget with Brake is used by another Client: give each Client its own")
	}
	if !b.Serves(queue) {
		b.Disclaim(c)
		return nil, fmt.Errorf("a Budget with Brake serves queue %q and others: give its "+
			"BudgetConfig a Name", queue)
	}
	if err := fleet.CheckName(b.State().Name); err != nil {
		b.Disclaim(c)
		return nil, fmt.Errorf("%w: give the BudgetConfig a Name", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	in := &crew{leave: cancel, ended: make(chan struct{}), users: 1}
	in.member = fleet.NewMember(fleet.Config{
		Brake: b, Link: c.link, Instance: c.instance(), Logger: c.opts.logger,
		Provisioned: c.opts.provisioned, Tell: c.tellBrake(b.State().Name),
	})
	c.crews[b] = in
	go func() {
		defer close(in.ended)
		in.member.Run(ctx)
	}()
	return in.member, nil
}

func (c *Client) leaveFleet(b *brake.Brake) {
	c.mu.Lock()
	in := c.crews[b]
	if in.users--; in.users > 0 {
		c.mu.Unlock()
		return
	}
	delete(c.crews, b)
	c.mu.Unlock()
	in.leave()
	<-in.ended
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.crews[b] == nil { // else another subscription has joined meanwhile
		b.Disclaim(c)
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

var errBraked = errors.New("too many deliveries fail")

// tellBrake returns the function that logs the changes of a brake and tells the observers of them.
func (c *Client) tellBrake(name string) func(state header.BrakeState, probing bool) {
	var last header.BrakeState
	return func(state header.BrakeState, probing bool) {
		fields := watermill.LogFields{"brake": name, "by": state.By, "cause": state.Cause}
		switch {
		case state.Stopped && !last.Stopped && state.Manual:
			c.opts.logger.Info("Consuming is stopped by hand, in all instances", fields.Add(
				watermill.LogFields{"until": state.Until}))
		case state.Stopped && !last.Stopped:
			c.opts.logger.Error("Consuming is stopped in all instances until probes succeed", errBraked,
				fields)
		case !state.Stopped && last.Stopped:
			c.opts.logger.Info("Consuming again", fields.Add(watermill.LogFields{
				"stopped_for": state.Since.Sub(last.Since).Round(time.Millisecond), "rate": state.Rate,
			}))
		}
		last = state
		kind := middleware.EventBudgetOpened
		if state.Stopped {
			kind = middleware.EventBudgetClosed
		}
		c.group.Observers.Tell(context.Background(), middleware.Event{
			Kind: kind, At: time.Now().UTC(), Brake: &state, Probing: probing,
		})
	}
}
