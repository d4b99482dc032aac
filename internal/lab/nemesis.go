package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology/operate"
)

// nemesis breaks nodes, networks, instances and queues, and repairs each. It writes each fault to
// the log before it strikes, and when it is over.
type nemesis struct {
	settings
	cluster *testbroker.Cluster
	proxies []proxied
	fleet   *fleet
	lines   lines
	letters []*letters // of each line; none if the letters stay where they are
	dir     string
	log     *eventLog
	active  func() string // the instance that began a handling last
	say     func(format string, args ...any)

	mu      sync.Mutex
	inForce int
	calm    time.Time // when the last fault ended
}

// proxied is a proxy between a client and a node.
type proxied struct {
	*testbroker.Proxy
	node  int
	place int // of the client in the fleet; -1 for the producers
}

// ofProducers is the place of the producers.
const ofProducers = -1

// which calls do for the proxies that a filter takes.
func (n *nemesis) which(take func(proxied) bool, do func(*testbroker.Proxy)) {
	for _, p := range n.proxies {
		if take(p) {
			do(p.Proxy)
		}
	}
}

func everyProxy(proxied) bool       { return true }
func ofFleet(p proxied) bool        { return p.place != ofProducers }
func (n *nemesis) quiet() bool      { n.mu.Lock(); defer n.mu.Unlock(); return n.inForce == 0 }
func (n *nemesis) url(i int) string { return n.cluster.Node(i % n.cluster.Size()).URL() }

// run lets the lanes of faults strike until the end of the run's length, and returns when the last
// is over.
func (n *nemesis) run(ctx context.Context, s schedule) {
	began := time.Now()
	var lanes sync.WaitGroup
	for _, faults := range s {
		lanes.Go(func() {
			for _, f := range faults {
				if !rest(ctx, time.Until(began.Add(f.At))) || time.Since(began) > n.Length {
					return
				}
				n.strike(ctx, f)
			}
		})
	}
	lanes.Wait()
	rest(ctx, time.Until(began.Add(n.Length)))
}

func (n *nemesis) strike(ctx context.Context, f fault) {
	n.mu.Lock()
	n.inForce++
	n.mu.Unlock()
	began, who, where := time.Now(), "", 0
	if slices.Contains(ofInstances, f.Kind) {
		who, where = n.instance(f)
	}
	err := n.log.append(event{Kind: struck, Fault: f.Kind, Who: who})
	hit, failed := n.one(ctx, f, who, where)
	e := event{Kind: over, Fault: f.Kind, Who: who, Began: began, Text: hit}
	if err = errors.Join(err, failed); err == nil {
		n.say("%s %s: over after %s", f.Kind, hit, time.Since(began).Round(time.Millisecond))
	} else {
		first, _, _ := strings.Cut(err.Error(), "\n") // the lines of rabbitmqctl are printed
		e.Failed, e.Text = true, first
		n.say("%s %s: NOT DONE: %v", f.Kind, hit, err)
	}
	if err := n.log.append(e); err != nil {
		n.say("%s %s: %v", f.Kind, hit, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inForce--
	n.calm = time.Now()
}

// instance returns the target of a fault and its place: the active instance, or one that runs.
func (n *nemesis) instance(f fault) (name string, place int) {
	running, active := n.fleet.running()[:n.Instances], n.active()
	for i, name := range running {
		if f.Aim && name != "" && name == active {
			return name, i
		}
	}
	for i := range running {
		if at := (f.Pick + i) % n.Instances; running[at] != "" {
			return running[at], at
		}
	}
	return "", 0
}

// one runs one fault from its beginning to its end. It returns the name of its target, also with an
// error.
func (n *nemesis) one(
	ctx context.Context, f fault, who string, where int,
) (hit string, err error) {
	node := f.Pick % n.cluster.Size()
	next := (node + 1) % n.cluster.Size()
	switch f.Kind {
	case killNode:
		if f.Aim {
			node = n.leader(ctx, n.lines[f.Pick%len(n.lines)].queue, node)
		}
		return n.down(ctx, f, n.cluster.Kill, node)
	case killMajority:
		return n.down(ctx, f, n.cluster.Kill, node, next)
	case minority:
		if f.Aim {
			return n.frozen(ctx, f.Hold, node, next)
		}
		return n.down(ctx, f, n.cluster.Kill, node, next)
	case restartNode:
		f.Hold /= 4
		return n.down(ctx, f, n.cluster.Stop, node)
	case freezeNode:
		return n.frozen(ctx, f.Hold, node)
	case pauseNode:
		return n.pause(ctx, f.Hold, node)
	case raiseAlarm, diskAlarm:
		alarm := n.cluster.Alarm
		if f.Kind == diskAlarm {
			alarm = n.disk
		}
		err := alarm(ctx, node, true)
		rest(ctx, f.Hold)
		return fmt.Sprint(node + 1), errors.Join(err, alarm(context.WithoutCancel(ctx), node, false))
	case applyPolicy:
		return n.policy(ctx, f)
	case fillDLQ:
		return n.fill(ctx, f.Hold, n.letters[f.Pick%len(n.letters)])
	case deleteQueue:
		return n.deleteQueue(ctx, n.lines[f.Pick%len(n.lines)].last(n.Delays))
	case deleteExchange, deleteBinding:
		return n.deletePart(f)
	case putOut:
		return "", n.putOut(ctx, f.Hold)
	}
	return n.client(ctx, f, who, where, node)
}

// deletePart deletes an exchange or a binding of a plan.
func (n *nemesis) deletePart(f fault) (hit string, err error) {
	exchanges, bindings, _ := n.lines.parts()
	if f.Kind == deleteExchange {
		hit = exchanges[f.Pick%len(exchanges)]
		return hit, n.admin(func(ch *amqp.Channel) error { return ch.ExchangeDelete(hit, false, false) })
	}
	b := bindings[f.Pick%len(bindings)]
	return b.Exchange + " to " + b.Queue + b.ToExchange, n.admin(func(ch *amqp.Channel) error {
		if b.ToExchange != "" {
			return ch.ExchangeUnbind(b.ToExchange, b.RoutingKey, b.Exchange, false, nil)
		}
		return ch.QueueUnbind(b.Queue, b.RoutingKey, b.Exchange, nil)
	})
}

// client runs a fault of an instance, or of the connections to a node or to all.
func (n *nemesis) client(
	ctx context.Context, f fault, who string, where, node int,
) (hit string, err error) {
	take, turn := func(p proxied) bool { return p.place == where }, (*testbroker.Proxy).Blackhole
	hit = who
	switch f.Kind {
	case killInstance:
		return who, n.fleet.signal(who, syscall.SIGKILL)
	case stopInstance:
		return who, n.fleet.signal(who, syscall.SIGTERM)
	case freezeInstance:
		err := n.fleet.signal(who, stopSignal)
		rest(ctx, f.Hold)
		return who, errors.Join(err, n.fleet.signal(who, goOnSignal))
	case cutInstance:
		n.which(take, (*testbroker.Proxy).Cut)
		return who, nil
	case cutAll:
		n.which(everyProxy, (*testbroker.Proxy).Cut)
		return "all", nil
	case silenceInstance: // as above
	case silenceNode:
		hit, take = fmt.Sprint(node+1), func(p proxied) bool { return p.node == node }
	case delayConfirms:
		hit, take, turn = "all", ofFleet, (*testbroker.Proxy).HoldConfirms
		if f.Aim {
			node = n.busiest()
			hit, take = fmt.Sprint(node+1), func(p proxied) bool { return ofFleet(p) && p.node == node }
		}
	default:
		return "", fmt.Errorf("unknown fault %q", f.Kind)
	}
	n.which(take, func(p *testbroker.Proxy) { turn(p, true) })
	rest(ctx, f.Hold)
	n.which(take, func(p *testbroker.Proxy) { turn(p, false) })
	return hit, nil
}

// busiest returns the node with the most connections of the fleet.
func (n *nemesis) busiest() (node int) {
	live := make([]int, n.cluster.Size())
	for _, p := range n.proxies {
		if ofFleet(p) {
			live[p.node] += p.Live()
		}
		if live[p.node] > live[node] {
			node = p.node
		}
	}
	return node
}

// down ends nodes, and starts them again together after the hold.
func (n *nemesis) down(
	ctx context.Context, f fault, end func(int) error, nodes ...int,
) (string, error) {
	names, err := each(nodes, end)
	err = errors.Join(err, n.log.append(event{Kind: struck, Fault: f.Kind})) // a stop takes seconds
	rest(ctx, f.Hold)
	return names, errors.Join(err, n.up(context.WithoutCancel(ctx)))
}

// frozen freezes nodes for hold.
func (n *nemesis) frozen(ctx context.Context, hold time.Duration, nodes ...int) (string, error) {
	names, err := each(nodes, n.cluster.Freeze)
	rest(ctx, hold)
	_, thawed := each(nodes, n.cluster.Thaw)
	return names + " frozen", errors.Join(err, thawed)
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

const (
	// usualTick and shortTick are net_ticktime in seconds: a node that is silent for a quarter more is
	// given up by the others. The broker's default is 60.
	usualTick = 60
	shortTick = 8
)

// pause freezes a node for longer than net_ticktime, so that the cluster is partitioned when the
// node goes on. Then it does the work of an operator: it restarts the node if the cluster does not
// heal by itself. A partition stays on 3.10 and 4.0, as cluster_partition_handling is "ignore".
func (n *nemesis) pause(ctx context.Context, hold time.Duration, node int) (string, error) {
	after := context.WithoutCancel(ctx)
	err := n.tick(ctx, shortTick)
	hit, frozen := n.frozen(ctx, hold, node)
	rest(after, 2*time.Second) // the ends of the connections between the nodes are noticed
	err = errors.Join(err, frozen, n.tick(after, usualTick))
	partitioned, asked := n.partitioned(after)
	err = errors.Join(err, asked)
	if !partitioned {
		return hit, err
	}
	if stopped := n.cluster.Stop(node); stopped != nil {
		err = errors.Join(err, n.cluster.Kill(node)) // it may hang without the others
	}
	return hit + " and restarted", errors.Join(err, n.up(after))
}

// tick changes net_ticktime of all nodes at once.
func (n *nemesis) tick(ctx context.Context, seconds int) (err error) {
	for i := range n.cluster.Size() {
		_, failed := n.tell(ctx, i, fmt.Sprintf("net_kernel:set_net_ticktime(%d, 0).", seconds))
		err = errors.Join(err, failed)
	}
	return err
}

// asking asks a node for the partitions it has noted. 4.3 knows none.
const asking = `case erlang:function_exported(rabbit_node_monitor, partitions, 0) of
	true -> rabbit_node_monitor:partitions();
	false -> []
end.`

// partitioned reports whether a node has noted a partition.
func (n *nemesis) partitioned(ctx context.Context) (bool, error) {
	var errs []error
	for i := range n.cluster.Size() {
		out, err := n.tell(ctx, i, asking)
		if err == nil && strings.TrimSpace(out) != "[]" {
			return true, nil
		}
		errs = append(errs, err)
	}
	return false, errors.Join(errs...)
}

// disk raises the disk alarm on a node, or clears it.
func (n *nemesis) disk(ctx context.Context, node int, raised bool) error {
	limit := "10MB"
	if raised {
		limit = "1000000GB"
	}
	_, err := n.tell(ctx, node, `rabbit_disk_monitor:set_disk_free_limit("`+limit+`").`)
	return err
}

// policies are definitions that an operator may set at any time: Verify calls none of them
// critical. The broker applies each to thousands of messages that wait or are being consumed.
var policies = []struct {
	definition string
	operators  bool // it may be an operator policy
}{
	{`{"delivery-limit":2147483647}`, true},
	{`{"queue-leader-locator":"balanced"}`, false},
	{`{"delivery-limit":2147483647,"queue-leader-locator":"client-local"}`, false},
}

// policy sets a policy for a while.
func (n *nemesis) policy(ctx context.Context, f fault) (string, error) {
	p := policies[f.Pick%len(policies)]
	set := "parse_set"
	if f.Aim && p.operators {
		set = "parse_set_op"
	}
	setting := fmt.Sprintf(
		`ok = rabbit_policy:%s(<<"/">>, <<"lab">>, <<".*">>, <<%q>>, <<"0">>, <<"queues">>, <<"lab">>).`,
		set, p.definition)
	var err error
	for i := range n.cluster.Size() { // one after the other, until one is there
		_, failed := n.tell(ctx, f.Pick+i, setting)
		if failed == nil {
			err = nil
			break
		}
		err = errors.Join(err, failed)
	}
	rest(ctx, f.Hold)
	return p.definition, errors.Join(err, n.noPolicy(context.WithoutCancel(ctx), clearFor))
}

// clearFor bounds the tries to clear a policy while nodes are away, so that other faults follow. A
// policy that stays is cleared in the end.
const clearFor = 30 * time.Second

// clearing deletes both kinds of policies, and lists the policies that are left.
const clearing = `rabbit_policy:delete(<<"/">>, <<"lab">>, <<"lab">>),
	rabbit_policy:delete_op(<<"/">>, <<"lab">>, <<"lab">>),
	{rabbit_policy:list(), rabbit_policy:list_op()}.`

// noPolicy clears the policies, and tries again while nodes are away.
func (n *nemesis) noPolicy(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for tries := 0; ; tries++ {
		left, err := n.tell(ctx, tries, clearing)
		if err == nil && strings.TrimSpace(left) == "{[],[]}" {
			return nil
		}
		if !rest(ctx, time.Second) {
			return errors.Join(fmt.Errorf("the policy is still there: %s", left), ctx.Err(), err)
		}
	}
}

// tell evaluates Erlang on a node. That costs far less than rabbitmqctl, which a busy machine has
// needed more than 20 s for.
func (n *nemesis) tell(ctx context.Context, node int, expression string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return n.cluster.Node(node%n.cluster.Size()).RunCtl(ctx, "eval", expression)
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
			if publishOne(ch, returned, of.queue, amqp.Publishing{Body: []byte(filler)}) != nil {
				return nil // refused
			}
		}
		return errors.New("it does not fill up")
	})
	rest(ctx, hold)
	return of.queue, err
}

// deleteQueue deletes a wait queue that only the last delay needs, once it is empty and while no
// instance may publish to it.
func (n *nemesis) deleteQueue(ctx context.Context, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	open, err := lockAlone(ctx, filepath.Join(n.dir, gateFile))
	if err != nil {
		return name, err
	}
	defer open()
	// The broker's figures are seconds late (F5).
	if !rest(ctx, n.Delays[len(n.Delays)-1]+6*time.Second) {
		return name, ctx.Err()
	}
	for empty := 0; empty < 3; empty++ {
		messages, err := n.column(ctx, 0, "messages", name) // held ones included
		if err != nil {
			return name, err
		}
		if count, _ := strconv.Atoi(messages); count > 0 {
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

// putOut lets the downstream service fail for a while, and counts the work of the broker meanwhile.
func (n *nemesis) putOut(ctx context.Context, hold time.Duration) error {
	file := filepath.Join(n.dir, outFile)
	began := time.Now()
	err := os.WriteFile(file, nil, 0o600)
	for _, at := range []time.Duration{outGrace, hold - time.Second} {
		rest(ctx, time.Until(began.Add(at)))
		err = errors.Join(err, n.tally(ctx))
	}
	rest(ctx, time.Until(began.Add(hold)))
	return errors.Join(err, os.Remove(file))
}

// admin runs f on a new channel, past the proxies, on the first node that answers.
func (n *nemesis) admin(f func(*amqp.Channel) error) error {
	var errs []error
	for _, url := range n.cluster.URLs() {
		ch, hangUp, err := dial(url)
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
	n.which(everyProxy, func(p *testbroker.Proxy) {
		p.Blackhole(false)
		p.HoldConfirms(false)
	})
	for i := range n.cluster.Size() {
		_ = n.cluster.Thaw(i) // fails if it is down
	}
	err := n.up(ctx)
	for i := range n.cluster.Size() {
		err = errors.Join(err, n.cluster.Alarm(ctx, i, false), n.disk(ctx, i, false))
	}
	return errors.Join(err, n.noPolicy(ctx, 2*time.Minute), n.tick(ctx, usualTick), n.declare(ctx),
		n.log.append(event{Kind: healed}))
}

// declare declares the source queues and all of the plans.
func (n *nemesis) declare(ctx context.Context) error {
	err := n.admin(func(ch *amqp.Channel) (err error) {
		for _, l := range n.lines {
			_, declared := ch.QueueDeclare(l.queue, true, false, false, false, l.arguments)
			err = errors.Join(err, declared)
		}
		return err
	})
	if err != nil {
		return err
	}
	operator, err := operate.Open(ctx, n.url(0), operate.WithoutPolicyCheck())
	if err != nil {
		return err
	}
	for _, l := range n.lines {
		err = errors.Join(err, operator.Declare(ctx, l.plan))
	}
	return errors.Join(err, operator.Close())
}
