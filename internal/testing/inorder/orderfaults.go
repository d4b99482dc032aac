package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// fault is a kind of fault.
type fault string

const (
	killActive      fault = "kill -9"   // of the active instance; another one is started
	freezeActive    fault = "freeze"    // of the active instance, usually beyond its heartbeat
	thawed          fault = "thaw"      // the end of a freeze
	restartBroker   fault = "restart"   // of the broker, in good order
	crashBroker     fault = "crash"     // of the broker, by kill -9
	cutAll          fault = "cut"       // of all connections
	cutActive       fault = "cut one"   // of the connections of the active instance
	partitionActive fault = "partition" // of the active instance, in silence
	down            fault = "down"      // the broker has ended, by a restart or a crash
	gone            fault = "gone"      // an instance has ended
	healed          fault = "healed"    // all faults are over
)

// faults lists the faults that strike.
var faults = []fault{
	killActive, freezeActive, restartBroker, crashBroker, cutAll, cutActive, partitionActive,
}

// planned is a fault of a schedule.
type planned struct {
	pause time.Duration // since the end of the fault before
	fault fault
	hold  time.Duration // from the beginning of a freeze, a partition or an outage to its end
}

// schedule returns the faults of a seed, without end: every kind once, then every kind again.
func schedule(seed uint64, heartbeat time.Duration) func() planned {
	r := rand.New(rand.NewPCG(seed, 27))
	between := func(least, most time.Duration) time.Duration {
		return least + time.Duration(r.Int64N(int64(most-least)))
	}
	var bag []fault
	return func() planned {
		if len(bag) == 0 {
			bag = append(bag, faults...)
			r.Shuffle(len(bag), func(i, j int) { bag[i], bag[j] = bag[j], bag[i] })
		}
		p := planned{fault: bag[0], pause: between(2*time.Second, 7*time.Second)}
		bag = bag[1:]
		switch p.fault {
		case freezeActive, partitionActive:
			// A broker gives a client up after two heartbeats and a bit. A fifth is shorter.
			p.hold = between(3*heartbeat, 5*heartbeat)
			if r.IntN(5) == 0 {
				p.hold = between(heartbeat/4, heartbeat)
			}
		case restartBroker, crashBroker:
			p.hold = between(0, 3*time.Second)
		}
		return p
	}
}

// nemesis lets faults strike, and writes each to the log of events before it strikes.
type nemesis struct {
	broker  *testbroker.Cluster // of one node
	proxies []*testbroker.Proxy // of the instances
	clients []*testbroker.Proxy // of the producer and the operator
	fleet   *fleet
	log     *eventLog
	active  func() string // the instance that began a handling last
	say     func(format string, args ...any)

	count  map[fault]int
	failed []string
}

// run lets the faults of a schedule strike until the deadline. None begins after it.
func (n *nemesis) run(ctx context.Context, deadline time.Time, next func() planned) error {
	for {
		p := next()
		if time.Now().Add(p.pause).After(deadline) {
			rest(ctx, time.Until(deadline))
			return ctx.Err()
		}
		if !rest(ctx, p.pause) {
			return ctx.Err()
		}
		if err := n.strike(ctx, p); err != nil {
			return err
		}
	}
}

// strike runs one fault from its beginning to its end. An error means that the run cannot go on.
func (n *nemesis) strike(ctx context.Context, p planned) error {
	began := time.Now()
	i, name := n.target()
	target := name
	var err error
	switch p.fault {
	case restartBroker, crashBroker:
		target = "broker"
		if err := n.outage(ctx, p); err != nil {
			return err
		}
	case killActive:
		err = errors.Join(n.mark(p.fault, name), n.fleet.signal(i, name, syscall.SIGKILL))
	case freezeActive:
		err = errors.Join(n.mark(p.fault, name), n.fleet.signal(i, name, stopSignal))
		rest(ctx, p.hold)
		err = errors.Join(err, n.mark(thawed, name), n.fleet.signal(i, name, goOnSignal))
	case cutAll:
		target = "all"
		err = n.mark(p.fault, "")
		for _, proxy := range slices.Concat(n.clients, n.proxies) {
			proxy.Cut()
		}
	case cutActive:
		err = n.mark(p.fault, name)
		n.proxies[i].Cut()
	case partitionActive:
		err = n.mark(p.fault, name)
		n.proxies[i].Blackhole(true)
		rest(ctx, p.hold)
		n.proxies[i].Blackhole(false)
	default:
		return fmt.Errorf("unknown fault %q", p.fault)
	}
	if err != nil {
		n.failed = append(n.failed, fmt.Sprintf("%s %s: %v", p.fault, target, err))
		n.say("%s %s: NOT DONE: %v", p.fault, target, err)
		return nil
	}
	n.count[p.fault]++
	n.say("%s %s: over after %s", p.fault, target, time.Since(began).Round(time.Millisecond))
	return nil
}

// outage stops or kills the broker, and starts it again.
func (n *nemesis) outage(ctx context.Context, p planned) error {
	if err := n.mark(p.fault, ""); err != nil {
		return err
	}
	end := n.broker.Stop
	if p.fault == crashBroker {
		end = n.broker.Kill
	}
	if err := end(0); err != nil {
		return err
	}
	if err := n.mark(down, ""); err != nil { // a stop takes seconds
		return err
	}
	rest(ctx, p.hold)
	return n.broker.Start(context.WithoutCancel(ctx), 0)
}

// target returns the active instance and its place, or the first instance that runs.
func (n *nemesis) target() (i int, name string) {
	name = n.active()
	if i, ok := n.fleet.place(name); ok {
		return i, name
	}
	for i := range n.proxies {
		if _, ok := n.fleet.place(n.fleet.name(i)); ok {
			return i, n.fleet.name(i)
		}
	}
	return 0, n.fleet.name(0)
}

// mark writes a fault to the log of events.
func (n *nemesis) mark(f fault, instance string) error {
	return n.log.append(event{kind: struck, at: time.Now(), instance: instance, fault: f})
}
