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
	"github.com/millpond-go/millpond/internal/consumer"
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
			return nil, errManyQueues(queue)
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
		return nil, errManyQueues(queue)
	}
	if err := fleet.CheckName(b.State().Name); err != nil {
		b.Disclaim(c)
		return nil, fmt.Errorf("%w: give the BudgetConfig a Name", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	in := &crew{leave: cancel, ended: make(chan struct{}), users: 1}
	tell, endTell := c.tellBrake(b.State().Name)
	in.member = fleet.NewMember(fleet.Config{
		Brake: b, Link: c.link, Instance: c.instance(), Logger: c.opts.logger,
		Provisioned: c.opts.provisioned, ControlUsers: c.opts.controlUsers, Tell: tell,
	})
	c.crews[b] = in
	go func() {
		defer close(in.ended)
		defer endTell()
		in.member.Run(ctx)
	}()
	return in.member, nil
}

func errManyQueues(queue string) error {
	return fmt.Errorf("a Budget with Brake serves queue %q and others: give its BudgetConfig a Name",
		queue)
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

// gate returns what lets the brakes stop a queue.
func (o *subscriberOptions) gate() func() consumer.Gate {
	if len(o.brakes) == 0 {
		return nil
	}
	return func() consumer.Gate { return brake.Sit(o.brakes...) }
}

var errBraked = errors.New("too many deliveries fail")

// mostChanges is how many changes of a brake may wait for slow observers. Later ones are dropped.
const mostChanges = 64

// brakeChange is a change of a brake in this process.
type brakeChange struct {
	header.BrakeState
	at      time.Time
	probing bool
}

// tellBrake returns a function that logs the changes of a brake and tells the observers of them, in
// another goroutine, because a slow observer must not keep a brake from stopping. The goroutine
// ends after the changes before end.
func (c *Client) tellBrake(
	name string,
) (tell func(state header.BrakeState, probing bool), end func()) {
	changes := make(chan brakeChange, mostChanges)
	var last brakeChange
	report := func(change brakeChange) {
		told := make(chan struct{})
		go func() { // an observer may end its goroutine
			defer close(told)
			c.reportBrake(name, last.BrakeState, change)
		}()
		<-told
		last = change
	}
	over := make(chan struct{})
	go func() {
		for {
			select {
			case change := <-changes:
				report(change)
			case <-over:
				for len(changes) > 0 {
					report(<-changes)
				}
				return
			}
		}
	}()
	tell = func(state header.BrakeState, probing bool) {
		select {
		case changes <- brakeChange{state, time.Now().UTC(), probing}:
		default:
		}
	}
	return tell, func() { close(over) }
}

func (c *Client) reportBrake(name string, last header.BrakeState, now brakeChange) {
	fields := watermill.LogFields{"brake": name, "by": now.By, "cause": now.Cause}
	switch {
	case now.Stopped && !last.Stopped && now.Manual:
		c.opts.logger.Info("Consuming is stopped by hand, in all instances", fields.Add(
			watermill.LogFields{"until": now.Until}))
	case now.Stopped && !last.Stopped:
		c.opts.logger.Error("Consuming is stopped in all instances until probes succeed", errBraked,
			fields)
	case now.Cause == brake.CauseUnused: // nothing consumes
	case !now.Stopped && last.Stopped:
		c.opts.logger.Info("Consuming again", fields.Add(watermill.LogFields{
			"stopped_for": now.Since.Sub(last.Since).Round(time.Millisecond), "rate": now.Rate,
		}))
	}
	kind := middleware.EventBudgetOpened
	if now.Stopped {
		kind = middleware.EventBudgetClosed
	}
	c.group.Observers.Tell(context.Background(), middleware.Event{
		Kind: kind, At: now.at, Brake: &now.BrakeState, Probing: now.probing,
	})
}
