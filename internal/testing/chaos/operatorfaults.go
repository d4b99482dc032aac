package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

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
		_, failed := n.cluster.Node(i).RunCtl(ctx, "eval",
			fmt.Sprintf("net_kernel:set_net_ticktime(%d, 0).", seconds))
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
		out, err := n.cluster.Node(i).RunCtl(ctx, "eval", asking)
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

// policyName is the name of the policy and of the operator policy.
const policyName = "chaos"

// policies are definitions that an operator may set at any time: Verify calls none of them
// critical. The broker applies each to thousands of messages that wait or are being consumed.
var policies = []struct {
	definition string
	// operators is false if it may not be an operator policy.
	operators bool
}{
	{`{"delivery-limit":2147483647}`, true},
	{`{"queue-leader-locator":"balanced"}`, false},
	{`{"delivery-limit":2147483647,"queue-leader-locator":"client-local"}`, false},
}

// policy sets a policy for a while.
func (n *nemesis) policy(ctx context.Context, f Fault) (string, error) {
	p := policies[f.Pick%len(policies)]
	set := "parse_set"
	if f.Aim && p.operators {
		set = "parse_set_op"
	}
	setting := fmt.Sprintf(
		`ok = rabbit_policy:%s(<<"/">>, <<%q>>, <<".*">>, <<%q>>, <<"0">>, <<"queues">>, <<"bench">>).`,
		set, policyName, p.definition)
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

// clearing deletes both kinds of policies of that name, and lists the policies that are left.
const clearing = `rabbit_policy:delete(<<"/">>, <<"` + policyName + `">>, <<"bench">>),
	rabbit_policy:delete_op(<<"/">>, <<"` + policyName + `">>, <<"bench">>),
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
