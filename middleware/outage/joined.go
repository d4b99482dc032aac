package outage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/internal/brake"
	"github.com/millpond-go/millpond/internal/fleet"
	"github.com/millpond-go/millpond/internal/seam"
	"github.com/millpond-go/millpond/middleware/header"
)

// part is the part of a brake that this process has.
type part struct {
	*brake.Brake
	cfg Brake

	mu     sync.Mutex
	member *fleet.Member
	end    context.CancelFunc
	ended  chan struct{}
	users  int // subscriptions
}

func (p *part) Pause(failed int) time.Duration { return p.cfg.pause(failed) }

func (p *part) EnoughSuccesses(row int) bool { return row >= p.cfg.Successes }

// Gate returns the seat of a subscription at all its brakes.
func (p *part) Gate(all []seam.Brake) seam.Gate {
	var brakes []*brake.Brake
	for _, other := range all {
		if other, ok := other.(*part); ok {
			brakes = append(brakes, other.Brake)
		}
	}
	return brake.Sit(brakes...)
}

// Join joins the fleet with the first subscription.
func (p *part) Join(host seam.Host, queue string) (<-chan struct{}, func(), error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.Claim(host.Owner) {
		return nil, nil, errors.New("a Budget with Brake is used by another Client: give each Client " +
			"its own")
	}
	if err := p.serve(queue); err != nil {
		if p.users == 0 {
			p.Disclaim(host.Owner)
		}
		return nil, nil, err
	}
	if p.users++; p.users == 1 {
		p.begin(host)
	}
	p.member.Serve(queue)
	return p.member.Ready(), func() { p.leave(host.Owner) }, nil
}

func (p *part) serve(queue string) error {
	if !p.Serves(queue) {
		return fmt.Errorf("a Budget with Brake serves queue %q and others: give its outage.Brake a Name",
			queue)
	}
	if err := fleet.CheckName(p.State().Name); err != nil {
		return fmt.Errorf("%w: give the outage.Brake a Name", err)
	}
	return nil
}

func (p *part) begin(host seam.Host) {
	ctx, cancel := context.WithCancel(context.Background())
	tell, endTell := p.tell(host)
	member, ended := fleet.NewMember(fleet.Config{
		Brake: p.Brake, Link: host.Link, Instance: host.Instance, Logger: host.Logger,
		Provisioned: host.Provisioned, ControlUsers: host.ControlUsers, Tell: tell,
	}), make(chan struct{})
	p.member, p.end, p.ended = member, cancel, ended
	go func() {
		defer close(ended)
		defer endTell()
		member.Run(ctx)
	}()
}

// leave leaves the fleet with the last subscription.
func (p *part) leave(owner any) {
	p.mu.Lock()
	p.users--
	last, end, ended := p.users == 0, p.end, p.ended
	p.mu.Unlock()
	if !last {
		return
	}
	end()
	<-ended
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == 0 { // else another subscription has joined meanwhile
		p.Disclaim(owner)
	}
}

var errOut = errors.New("too many deliveries fail")

// mostChanges is how many changes of a brake may wait for slow observers. Later ones are dropped.
const mostChanges = 64

// change is a change of a brake in this process.
type change struct {
	header.BrakeState
	at      time.Time
	probing bool
}

// tell returns a function that logs the changes of the brake and tells the host of them, in
// another goroutine, because a slow observer must not keep a brake from stopping. The goroutine
// ends after the changes before end.
func (p *part) tell(host seam.Host) (tell func(state header.BrakeState, probing bool), end func()) {
	changes, over := make(chan change, mostChanges), make(chan struct{})
	logger := host.Logger.With(watermill.LogFields{"brake": p.State().Name})
	var last change
	report := func(now change) {
		told := make(chan struct{})
		go func() { // an observer may end its goroutine
			defer close(told)
			log(logger, last.BrakeState, now.BrakeState)
			host.Tell(now.BrakeState, now.at, now.probing)
		}()
		<-told
		last = now
	}
	go func() {
		for {
			select {
			case now := <-changes:
				report(now)
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
		case changes <- change{state, time.Now().UTC(), probing}:
		default:
		}
	}
	return tell, func() { close(over) }
}

func log(logger watermill.LoggerAdapter, last, now header.BrakeState) {
	fields := watermill.LogFields{"by": now.By, "cause": now.Cause}
	switch {
	case now.Stopped && !last.Stopped && now.Manual:
		logger.Info("Consuming is stopped by hand, in all instances", fields.Add(
			watermill.LogFields{"until": now.Until}))
	case now.Stopped && !last.Stopped:
		logger.Error("Consuming is stopped in all instances until probes succeed", errOut, fields)
	case now.Cause == brake.CauseUnused: // nothing consumes
	case !now.Stopped && last.Stopped:
		logger.Info("Consuming again", fields.Add(watermill.LogFields{
			"stopped_for": now.Since.Sub(last.Since).Round(time.Millisecond), "rate": now.Rate,
		}))
	}
}
