package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// nemesis breaks nodes, networks, consumers and queues, and repairs each.
type nemesis struct {
	cluster *testbroker.Cluster
	fronts  []front // one a node
	fleet   *fleet
	lines   lines
	letters []*letters    // of each line
	parts   topology.Plan // all that the lines have on the broker
	gate    string
	say     func(format string, args ...any)

	mu     sync.Mutex
	struck []Struck
}

// front has the proxies between a node and its clients.
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

// one runs one fault from its beginning to its end. It returns the name of its target, also with an
// error.
func (n *nemesis) one(ctx context.Context, f Fault) (hit string, err error) {
	node := f.Pick % n.cluster.Size()
	consumer := f.Pick % len(n.fleet.slots)
	switch f.Kind {
	case KillNode:
		if f.Aim {
			node = n.leader(ctx, n.lines.of(f.Pick).queue, node)
		}
		return n.down(ctx, f.Hold, n.cluster.Kill, node)
	case KillMajority:
		return n.down(ctx, f.Hold, n.cluster.Kill, node, (node+1)%n.cluster.Size())
	case Minority:
		others := []int{node, (node + 1) % n.cluster.Size()}
		if f.Aim {
			hit, err := n.frozen(ctx, f.Hold, others...)
			return hit + " frozen", err
		}
		hit, err := n.down(ctx, f.Hold, n.cluster.Kill, others...)
		return hit + " killed", err
	case RestartNode:
		return n.down(ctx, f.Hold/4, n.cluster.Stop, node)
	case FreezeNode:
		return n.frozen(ctx, f.Hold, node)
	case PauseNode:
		return n.pause(ctx, f.Hold, node)
	case DiskAlarm:
		err := n.disk(ctx, node, true)
		rest(ctx, f.Hold)
		return fmt.Sprint(node + 1), errors.Join(err, n.disk(context.WithoutCancel(ctx), node, false))
	case ApplyPolicy:
		return n.policy(ctx, f)
	case RaiseAlarm:
		err := n.cluster.Alarm(ctx, node, true)
		rest(ctx, f.Hold)
		return fmt.Sprint(node + 1), errors.Join(err,
			n.cluster.Alarm(context.WithoutCancel(ctx), node, false))
	case FillDLQ:
		return n.fill(ctx, f.Hold, n.letters[f.Pick%len(n.letters)])
	case DeleteQueue:
		return n.deleteQueue(ctx, n.lines.of(f.Pick).last())
	case DeleteExchange:
		exchange := n.parts.Exchanges[f.Pick%len(n.parts.Exchanges)].Name
		return exchange, n.admin(func(ch *amqp.Channel) error {
			return ch.ExchangeDelete(exchange, false, false)
		})
	case DeleteBinding:
		b := n.parts.Bindings[f.Pick%len(n.parts.Bindings)]
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
		hit, fronts := "all", n.fronts
		if f.Aim {
			node = n.busiest()
			hit, fronts = fmt.Sprint(node+1), fronts[node:node+1]
		}
		for _, front := range fronts {
			front.consumers.HoldConfirms(true)
		}
		rest(ctx, f.Hold)
		for _, front := range fronts {
			front.consumers.HoldConfirms(false)
		}
		return hit, nil
	}
	return "", fmt.Errorf("unknown fault %q", f.Kind)
}

// busiest returns the node with the most connections of consumers.
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
func (n *nemesis) down(
	ctx context.Context, hold time.Duration, end func(int) error, nodes ...int,
) (string, error) {
	names, err := each(nodes, end)
	rest(ctx, hold)
	return names, errors.Join(err, n.up(context.WithoutCancel(ctx)))
}

// frozen freezes nodes for hold.
func (n *nemesis) frozen(ctx context.Context, hold time.Duration, nodes ...int) (string, error) {
	names, err := each(nodes, n.cluster.Freeze)
	rest(ctx, hold)
	_, thawed := each(nodes, n.cluster.Thaw)
	return names, errors.Join(err, thawed)
}

// each calls do for nodes, and returns their names.
func each(nodes []int, do func(int) error) (names string, err error) {
	var all []string
	for _, i := range nodes {
		all = append(all, fmt.Sprint(i+1))
		err = errors.Join(err, do(i))
	}
	return strings.Join(all, " and "), err
}

// up starts all nodes that are down. A node that waits for another may give up, and is started
// again.
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

// leader returns the node that leads a queue, else otherwise.
func (n *nemesis) leader(ctx context.Context, queue string, otherwise int) int {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for i := range n.cluster.Size() {
		leader, err := n.column(ctx, i, "leader", queue)
		for j := range n.cluster.Size() {
			if err == nil && leader == n.cluster.Node(j).Name() {
				return j
			}
		}
	}
	return otherwise
}

// column asks node i for a column of rabbitmqctl list_queues, and returns its value for a queue.
func (n *nemesis) column(ctx context.Context, i int, name, queue string) (string, error) {
	out, err := n.cluster.Node(i).RunCtl(ctx, "list_queues", "--no-table-headers", "name", name)
	for line := range strings.Lines(out) {
		if found, value, _ := strings.Cut(strings.TrimSpace(line), "\t"); found == queue {
			return value, nil
		}
	}
	return "", err
}

// fill fills a dead-letter queue until it refuses, and keeps it full for a while.
func (n *nemesis) fill(ctx context.Context, hold time.Duration, of *letters) (string, error) {
	of.turn.Lock()
	defer of.turn.Unlock()
	err := n.admin(func(ch *amqp.Channel) error {
		returned := ch.NotifyReturn(make(chan amqp.Return, 1))
		for range 3 * dlqLimit {
			err := PublishOne(ch, returned, of.queue, amqp.Publishing{Body: []byte(filler)})
			if err != nil {
				return nil // refused
			}
		}
		return errors.New("it does not fill up")
	})
	rest(ctx, hold)
	return of.queue, err
}

// deleteQueue deletes a wait queue that only the last delay needs, once it is empty and while no
// consumer may publish to it.
func (n *nemesis) deleteQueue(ctx context.Context, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	open, err := lockAlone(ctx, n.gate)
	if err != nil {
		return name, err
	}
	defer open()
	// The broker's figures are seconds late (F5).
	if !rest(ctx, Delays[len(Delays)-1]+6*time.Second) {
		return name, ctx.Err()
	}
	for empty := 0; empty < 3; empty++ {
		messages, err := n.messages(ctx, name)
		if err != nil {
			return name, err
		}
		if messages > 0 {
			empty = -1
		}
		if !rest(ctx, 2*time.Second) {
			return name, ctx.Err()
		}
	}
	return name, n.admin(func(ch *amqp.Channel) error {
		purged, err := ch.QueueDelete(name, false, false, false)
		if purged > 0 {
			err = errors.Join(err, fmt.Errorf("%d messages were inside", purged))
		}
		return err
	})
}

// messages returns the number of messages of a queue, held ones included, and 0 without a queue.
func (n *nemesis) messages(ctx context.Context, queue string) (int, error) {
	count, err := n.column(ctx, 0, "messages", queue)
	if err != nil || count == "" {
		return 0, err
	}
	return strconv.Atoi(count)
}

// admin runs f on a new channel, past the proxies, on the first node that answers.
func (n *nemesis) admin(f func(*amqp.Channel) error) error {
	var errs []error
	for _, url := range n.cluster.URLs() {
		ch, hangUp, err := Dial(url)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		defer hangUp()
		return f(ch)
	}
	return errors.Join(errs...)
}

// heal ends all faults and declares again the deleted queues, exchanges and bindings, as an
// operator would.
func (n *nemesis) heal(ctx context.Context) error {
	for i := range n.cluster.Size() {
		_ = n.cluster.Thaw(i) // fails if it is down
		n.fronts[i].both(func(p *testbroker.Proxy) {
			p.Blackhole(false)
			p.HoldConfirms(false)
		})
	}
	err := n.up(ctx)
	for i := range n.cluster.Size() {
		err = errors.Join(err, n.cluster.Alarm(ctx, i, false), n.disk(ctx, i, false))
	}
	return errors.Join(err, n.noPolicy(ctx, 2*time.Minute), n.tick(ctx, usualTick), n.declare())
}

// declare declares the source queues and all of the plans.
func (n *nemesis) declare() error {
	return n.admin(func(ch *amqp.Channel) (err error) {
		for _, l := range n.lines {
			if err == nil {
				_, err = ch.QueueDeclare(l.queue, true, false, false, false,
					amqp.Table{"x-queue-type": "quorum"})
			}
		}
		for _, e := range n.parts.Exchanges {
			if err == nil {
				err = ch.ExchangeDeclare(e.Name, e.Kind, true, false, false, false, e.Arguments)
			}
		}
		for _, q := range n.parts.Queues {
			if err == nil {
				_, err = ch.QueueDeclare(q.Name, true, false, false, false, q.Arguments)
			}
		}
		for _, b := range n.parts.Bindings {
			switch {
			case err != nil:
			case b.ToExchange != "":
				err = ch.ExchangeBind(b.ToExchange, b.RoutingKey, b.Exchange, false, nil)
			default:
				err = ch.QueueBind(b.Queue, b.RoutingKey, b.Exchange, false, nil)
			}
		}
		return err
	})
}
