package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate/doctor"
)

// ward is a vhost of a managed node.
type ward struct {
	t          *testing.T
	node       *testbroker.Node
	api, vhost string
}

func newWard(t *testing.T, node *testbroker.Node, api, vhost string) ward {
	t.Helper()
	node.Grant(t, testbroker.Everything(vhost, "guest"))
	return ward{t, node, api, vhost}
}

func (w ward) url(user string) string {
	return strings.Replace(w.node.URL(), "guest:guest", user+":"+user, 1) + w.vhost
}

// everything are the queues of the vhost with their messages, and its exchanges, a line each. Tests
// ask again and again, so it does without rabbitmqctl.
func (w ward) everything() string {
	return w.node.Ctl(w.t, "eval", fmt.Sprintf(`
		lists:foreach(fun([{name, {resource, _, _, Q}}, {messages, N}]) ->
			io:format("~ts\t~p~n", [Q, N])
		end, rabbit_amqqueue:info_all(<<%[1]q>>, [name, messages])),
		lists:foreach(fun([{name, {resource, _, _, E}}]) ->
			io:format("~ts~n", [E])
		end, rabbit_exchange:info_all(<<%[1]q>>, [name])).`, w.vhost))
}

func plan(t *testing.T, strategy topology.Strategy, queue string) topology.Plan {
	t.Helper()
	return rig.PlanFor(t, queue, strategy, backoff.List{time.Second, 5 * time.Second})
}

// examine returns the report and its checks by name.
func (w ward) examine(options ...doctor.Option) map[string]doctor.Check {
	return w.examineAs("guest", append(options, doctor.WithManagement(w.api))...)
}

func (w ward) examineAs(user string, options ...doctor.Option) map[string]doctor.Check {
	w.t.Helper()
	r, err := doctor.Examine(w.t.Context(), w.url(user), options...)
	require.NoError(w.t, err)
	checks := map[string]doctor.Check{}
	for _, c := range r.Checks {
		w.t.Logf("%s %-8s %-20s %s", r.Version, c.Status, c.Name, c.Seen)
		for _, text := range []string{c.Name, c.Expected, c.Seen, c.Meaning} {
			assert.NotEmpty(w.t, text, "%+v", c)
		}
		checks[c.Name] = c
	}
	require.True(w.t, slices.IsSortedFunc(r.Checks, func(a, b doctor.Check) int {
		order := []doctor.Status{doctor.Differs, doctor.Unknown, doctor.OK}
		return slices.Index(order, a.Status) - slices.Index(order, b.Status)
	}), "trouble first")
	return checks
}

// differing are the names of the checks that differ, sorted.
func differing(checks map[string]doctor.Check) (names []string) {
	for name, c := range checks {
		if c.Status == doctor.Differs {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// A broker with its default settings is as expected. Everything is as before, also the queues that
// the plans name.
func TestADefaultBrokerIsSound(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	w := newWard(t, node, api, "sound")
	o := rig.OpenOperator(t, w.url("guest"))
	rig.DeclareQueue(t, w.url("guest"), "orders", amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, o.Declare(t.Context(), plan(t, topology.Shared{}, "orders")))
	before := w.everything()
	began := time.Now()
	checks := w.examine(doctor.WithPlan(plan(t, topology.Shared{}, "orders")),
		doctor.WithPlan(plan(t, topology.Levels{}, "missing")),
		doctor.WithPlan(plan(t, topology.PerQueue{Type: topology.Classic}, "invoices")))
	t.Logf("all of it took %v", time.Since(began))
	require.Empty(t, differing(checks))
	require.Equal(t, before, w.everything())
	for name, c := range checks {
		switch name {
		case "consumer timeout", "held, then sent", "message size": // the broker does not show them
			assert.Equal(t, doctor.Unknown, c.Status, name)
		case "policies": // a young node has not shown its alarms
		default:
			assert.Equal(t, doctor.OK, c.Status, name)
		}
	}
	require.Len(t, checks, 21)
}

func TestExamineRefusesOptions(t *testing.T) {
	t.Parallel()
	_, err := doctor.Examine(t.Context(), "amqp://guest:secret@[", nil,
		doctor.WithPatience(time.Millisecond), doctor.WithManagement("ftp://a"),
		doctor.WithPlan(topology.Plan{}))
	for _, text := range []string{"option 1 is nil", "from 1s to 24h", "WithManagement", "WithPlan"} {
		require.ErrorContains(t, err, text)
	}
	require.NotContains(t, err.Error(), "secret")
}

// A run whose context ends removes its queues before it returns.
func TestACancelledRunLeavesNothing(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	w := newWard(t, node, api, "cancelled")
	before := w.everything()
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	done := make(chan error, 1)
	go func() {
		_, err := doctor.Examine(ctx, w.url("guest"), doctor.WithPatience(time.Hour))
		done <- err
	}()
	testbroker.WaitFor(t, "scratch queues", rig.Patience, func() bool {
		return strings.Contains(w.everything(), "millpond.doctor.")
	})
	cancel(stopped)
	require.ErrorIs(t, rig.Await(t, done), stopped)
	require.Equal(t, before, w.everything())
}
