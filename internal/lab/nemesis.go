package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	*run
	proxies []proxied

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
func (n *nemesis) url(i int) string { return n.cluster.Node(i % n.cluster.Size()).URL() }

// quietSince returns the end of the last fault, and the present time while one is in force.
func (n *nemesis) quietSince() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.inForce > 0 {
		return time.Now()
	}
	return n.calm
}

// follow lets the lanes of faults strike until the end of the run's length, and returns when the
// last is over. A schedule by hand strikes whole, also where a slow machine makes a fault late.
func (n *nemesis) follow(ctx context.Context, s schedule) {
	began := time.Now()
	var lanes sync.WaitGroup
	for _, faults := range s {
		lanes.Go(func() {
			for _, f := range faults {
				if !rest(ctx, time.Until(began.Add(f.At))) ||
					n.Schedule == nil && time.Since(began) > n.Length {
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
	if err = errors.Join(err, failed); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n") // the lines of rabbitmqctl are printed
		e.Failed, e.Text = true, first
	}
	n.say("%s %s: over after %s, problems: %v", f.Kind, hit, time.Since(began).Round(time.Millisecond),
		err)
	n.note(e)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inForce--
	n.calm = time.Now()
}

// instance returns the target of a fault and its place: the active instance, or one that runs.
func (n *nemesis) instance(f fault) (name string, place int) {
	running, active := n.fleet.running()[:n.Instances], n.active()
	if i := slices.Index(running, active); f.Aim && active != "" && i >= 0 {
		return active, i
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
	switch f.Kind {
	case killNode, minority, restartNode, freezeNode:
		return n.halt(ctx, f, node)
	case pauseNode:
		return n.pause(ctx, f, node)
	case raiseAlarm:
		err := n.cluster.Alarm(ctx, node, true)
		rest(ctx, f.Hold)
		return fmt.Sprint(node + 1), errors.Join(err,
			n.cluster.Alarm(context.WithoutCancel(ctx), node, false))
	case applyPolicy:
		return n.policy(ctx, f)
	case putOut:
		return "", n.putOut(ctx, f.Hold)
	}
	return n.client(ctx, f, who, where, node)
}

// client runs a fault of an instance, or of the connections to a node or to all.
func (n *nemesis) client(
	ctx context.Context, f fault, who string, where, node int,
) (hit string, err error) {
	take, turn := func(p proxied) bool { return p.place == where }, (*testbroker.Proxy).Blackhole
	if hit = who; who == "" && slices.Contains(ofInstances, f.Kind) {
		return "", errors.New("no instance runs")
	}
	switch f.Kind {
	case killInstance:
		return who, n.fleet.signal(who, syscall.SIGKILL)
	case stopInstance:
		return who, n.fleet.signal(who, syscall.SIGTERM)
	case freezeInstance:
		err := n.fleet.signal(who, syscall.SIGSTOP)
		rest(ctx, f.Hold)
		return who, errors.Join(err, n.fleet.signal(who, syscall.SIGCONT))
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
		hit, turn = fmt.Sprint(node+1), (*testbroker.Proxy).HoldConfirms
		take = func(p proxied) bool { return ofFleet(p) && (p.node == node || !f.Aim) }
	default:
		return "", fmt.Errorf("unknown fault %q", f.Kind)
	}
	n.which(take, func(p *testbroker.Proxy) { turn(p, true) })
	rest(ctx, f.Hold)
	n.which(take, func(p *testbroker.Proxy) { turn(p, false) })
	return hit, nil
}

// halt ends or freezes one node or two. After the hold they go on, or start again together.
func (n *nemesis) halt(ctx context.Context, f fault, node int) (hit string, err error) {
	nodes, end := []int{node}, n.cluster.Kill
	switch f.Kind {
	case killNode:
		if f.Aim {
			nodes[0] = n.leader(ctx, n.lines[f.Pick%len(n.lines)].queue, node)
		}
	case minority:
		nodes = append(nodes, (node+1)%n.cluster.Size())
		if f.Aim {
			end = n.cluster.Freeze
		}
	case restartNode:
		f.Hold, end = f.Hold/4, n.cluster.Stop
	default:
		end = n.cluster.Freeze
	}
	for _, i := range nodes {
		hit += fmt.Sprint(i+1, " ")
		err = errors.Join(err, end(i))
	}
	err = errors.Join(err, n.log.append(event{Kind: struck, Fault: f.Kind})) // a stop takes seconds
	rest(ctx, f.Hold)
	for _, i := range nodes {
		_ = n.cluster.Thaw(i) // fails if it is down
	}
	return hit, errors.Join(err, n.up(context.WithoutCancel(ctx)))
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

// usualTick is net_ticktime by default, in seconds: a node that is silent for a quarter more is
// given up by the others.
const usualTick = 60

// pause freezes a node for longer than net_ticktime, so that the cluster is partitioned when the
// node goes on. A partition stays on 3.10 and 4.0, as cluster_partition_handling is "ignore". So it
// restarts the node, as an operator does.
func (n *nemesis) pause(ctx context.Context, f fault, node int) (string, error) {
	after := context.WithoutCancel(ctx)
	err := n.tick(ctx, 8)
	hit, frozen := n.halt(ctx, f, node)
	rest(after, 2*time.Second) // the ends of the connections between the nodes are noticed
	err = errors.Join(err, frozen, n.tick(after, usualTick))
	if stopped := n.cluster.Stop(node); stopped != nil {
		err = errors.Join(err, n.cluster.Kill(node)) // it may hang without the others
	}
	return hit, errors.Join(err, n.up(after))
}

// tick changes net_ticktime of all nodes at once.
func (n *nemesis) tick(ctx context.Context, seconds int) (err error) {
	for i := range n.cluster.Size() {
		_, failed := n.tell(ctx, i, fmt.Sprintf("net_kernel:set_net_ticktime(%d, 0).", seconds))
		err = errors.Join(err, failed)
	}
	return err
}

// policy sets a policy for a while that an operator may set at any time: Verify calls it not
// critical. The broker applies it to thousands of messages that wait or are being consumed.
func (n *nemesis) policy(ctx context.Context, f fault) (string, error) {
	set, definition := "parse_set", `{"delivery-limit":2147483647,"queue-leader-locator":"balanced"}`
	if f.Aim { // an operator policy, which may have no locator
		set, definition = "parse_set_op", `{"delivery-limit":2147483647}`
	}
	err := n.untilTold(ctx, fmt.Sprintf(
		`rabbit_policy:%s(<<"/">>, <<"lab">>, <<".*">>, <<%q>>, <<"0">>, <<"queues">>, <<"lab">>).`,
		set, definition), "ok")
	rest(ctx, f.Hold)
	return definition, errors.Join(err, n.noPolicy(context.WithoutCancel(ctx)))
}

// noPolicy deletes both kinds of policies.
func (n *nemesis) noPolicy(ctx context.Context) error {
	return n.untilTold(ctx, `rabbit_policy:delete(<<"/">>, <<"lab">>, <<"lab">>),
		rabbit_policy:delete_op(<<"/">>, <<"lab">>, <<"lab">>),
		{rabbit_policy:list(), rabbit_policy:list_op()}.`, "{[],[]}")
}

// untilTold evaluates Erlang on one node after the other until one gives the answer. Nodes may be
// away, but other faults must follow. A policy that stays is cleared in the end.
func (n *nemesis) untilTold(ctx context.Context, expression, answer string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for tries := 0; ; tries++ {
		got, err := n.tell(ctx, tries, expression)
		if err == nil && strings.TrimSpace(got) == answer {
			return nil
		}
		if !rest(ctx, time.Second) {
			return errors.Join(fmt.Errorf("a node says %s, not %s", got, answer), ctx.Err(), err)
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
	said, _ := n.tell(ctx, otherwise, fmt.Sprintf(
		`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<%q>>)),
		{_, Node} = amqqueue:get_pid(Q), Node.`, queue))
	for i := range n.cluster.Size() {
		if strings.Trim(strings.TrimSpace(said), "'") == n.cluster.Node(i).Name() {
			return i
		}
	}
	return otherwise
}

// putOut lets the downstream service fail for a while, and counts the publishes of the fleet
// meanwhile.
func (n *nemesis) putOut(ctx context.Context, hold time.Duration) error {
	file := filepath.Join(n.dir, outFile)
	began := time.Now()
	err := os.WriteFile(file, nil, 0o600)
	for _, at := range []time.Duration{outGrace, hold} {
		rest(ctx, time.Until(began.Add(at)))
		published := 0
		n.which(ofFleet, func(p *testbroker.Proxy) { published += p.Publishes() })
		n.note(event{Kind: sampled, Figures: map[string]float64{"published": float64(published)}})
	}
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

// heal ends all faults.
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
		err = errors.Join(err, n.cluster.Alarm(ctx, i, false))
	}
	return errors.Join(err, n.noPolicy(ctx), n.tick(ctx, usualTick),
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
