package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// nemesis breaks things, and makes each whole again.
type nemesis struct {
	cluster *testbroker.Cluster
	fronts  []front // one a node
	fleet   *fleet
	letters *letters
	plan    topology.Plan
	gate    string
	say     func(format string, args ...any)

	mu     sync.Mutex
	struck []Struck
}

// front is what stands between a node and its clients.
type front struct{ consumers, producers *testbroker.Proxy }

// both calls f for both proxies.
func (f front) both(do func(*testbroker.Proxy)) {
	do(f.consumers)
	do(f.producers)
}

// run lets both lanes of faults strike, and returns when the last is over.
func (n *nemesis) run(ctx context.Context, s Schedule) {
	begun := time.Now()
	var lanes sync.WaitGroup
	for _, faults := range [][]Fault{s.Broker, s.Clients} {
		lanes.Go(func() {
			for _, f := range faults {
				if !rest(ctx, time.Until(begun.Add(f.At))) {
					return
				}
				n.strike(ctx, f)
			}
		})
	}
	lanes.Wait()
}

func (n *nemesis) strike(ctx context.Context, f Fault) {
	s := Struck{Fault: f, Begun: time.Now()}
	s.What, s.Err = n.one(ctx, f)
	s.End = time.Now()
	if s.Err != nil {
		n.say("%s %s: NOT DONE: %v", f.Kind, s.What, s.Err)
	} else {
		n.say("%s %s: over after %s", f.Kind, s.What, s.End.Sub(s.Begun).Round(time.Millisecond))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.struck = append(n.struck, s)
}

// one is one fault from its beginning to its end. What it returns even with an error says what was
// hit.
func (n *nemesis) one(ctx context.Context, f Fault) (what string, err error) {
	node := f.Pick % n.cluster.Size()
	consumer := f.Pick % len(n.fleet.slots)
	switch f.Kind {
	case KillNode:
		if f.Aim {
			node = n.leader(ctx, node)
		}
		return n.down(ctx, f.Hold, n.cluster.Kill, node)
	case KillMajority:
		return n.down(ctx, f.Hold, n.cluster.Kill, node, (node+1)%n.cluster.Size())
	case Minority:
		others := []int{node, (node + 1) % n.cluster.Size()}
		if f.Aim {
			what, err := n.frozen(ctx, f.Hold, others...)
			return what + " frozen", err
		}
		what, err := n.down(ctx, f.Hold, n.cluster.Kill, others...)
		return what + " killed", err
	case RestartNode:
		return n.down(ctx, f.Hold/4, n.cluster.Stop, node)
	case FreezeNode:
		return n.frozen(ctx, f.Hold, node)
	case RaiseAlarm:
		err := n.cluster.Alarm(ctx, node, true)
		rest(ctx, f.Hold)
		return fmt.Sprint(node + 1), errors.Join(err,
			n.cluster.Alarm(context.WithoutCancel(ctx), node, false))
	case FillDLQ:
		return n.fill(ctx, f.Hold)
	case DeleteQueue:
		return n.deleteQueue(ctx)
	case DeleteExchange:
		exchange := n.plan.Exchanges[f.Pick%len(n.plan.Exchanges)].Name
		return exchange, n.admin(func(ch *amqp.Channel) error {
			return ch.ExchangeDelete(exchange, false,
				false)
		})
	case DeleteBinding:
		b := n.plan.Bindings[f.Pick%len(n.plan.Bindings)]
		return b.Exchange + " to " + b.Queue + b.ToExchange, n.admin(func(ch *amqp.Channel) error {
			if b.ToExchange != "" {
				return ch.ExchangeUnbind(b.ToExchange, b.RoutingKey, b.Exchange, false, nil)
			}
			return ch.QueueUnbind(b.Queue, b.RoutingKey, b.Exchange, nil)
		})
	case KillConsumer:
		return fmt.Sprint(consumer + 1), n.fleet.kill(consumer)
	case StopConsumer:
		return fmt.Sprint(consumer + 1), n.fleet.stop(consumer)
	case CutClients:
		for _, front := range n.fronts {
			front.both((*testbroker.Proxy).Cut)
		}
		return "all", nil
	case Blackhole:
		n.fronts[node].both(func(p *testbroker.Proxy) { p.Blackhole(true) })
		rest(ctx, f.Hold)
		n.fronts[node].both(func(p *testbroker.Proxy) { p.Blackhole(false) })
		return fmt.Sprint(node + 1), nil
	case DelayConfirms:
		what, fronts := "all", n.fronts
		if f.Aim {
			node = n.busiest()
			what, fronts = fmt.Sprint(node+1), fronts[node:node+1]
		}
		for _, front := range fronts {
			front.consumers.HoldConfirms(true)
		}
		rest(ctx, f.Hold)
		for _, front := range fronts {
			front.consumers.HoldConfirms(false)
		}
		return what, nil
	}
	return "", fmt.Errorf("unknown fault %q", f.Kind)
}

// busiest is the node with the most connections of consumers.
func (n *nemesis) busiest() int {
	node := 0
	for i, f := range n.fronts {
		if f.consumers.Live() > n.fronts[node].consumers.Live() {
			node = i
		}
	}
	return node
}

// down ends nodes, and starts them again together after hold.
func (n *nemesis) down(ctx context.Context, hold time.Duration, end func(int) error,
	nodes ...int) (string, error) {
	var names []string
	var err error
	for _, i := range nodes {
		names = append(names, fmt.Sprint(i+1))
		err = errors.Join(err, end(i))
	}
	rest(ctx, hold)
	return strings.Join(names, " and "), errors.Join(err, n.up(context.WithoutCancel(ctx)))
}

// frozen freezes nodes for hold.
func (n *nemesis) frozen(ctx context.Context, hold time.Duration, nodes ...int) (string, error) {
	var names []string
	var err error
	for _, i := range nodes {
		names = append(names, fmt.Sprint(i+1))
		err = errors.Join(err, n.cluster.Freeze(i))
	}
	rest(ctx, hold)
	for _, i := range nodes {
		err = errors.Join(err, n.cluster.Thaw(i))
	}
	return strings.Join(names, " and "), err
}

// up starts all nodes that are down. One that waits for another may give up, and is started once
// more.
func (n *nemesis) up(ctx context.Context) error {
	errs := make([]error, n.cluster.Size())
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for tries := 0; tries < 3 && !n.cluster.Running(i); tries++ {
				errs[i] = n.cluster.Start(ctx, i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// rest waits for d, and reports whether ctx is not done.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
