package operate_test

import (
	"context"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// looks are all calls that take messages, so that they change nothing.
var looks = map[string]func(context.Context, *operate.Operator, *box) error{
	"dead": func(ctx context.Context, o *operate.Operator, b *box) (err error) {
		for _, err = range o.Dead(ctx, b.plan, operate.Filter{}, 0) {
		}
		return err
	},
	"peek": func(ctx context.Context, o *operate.Operator, b *box) error {
		_, err := o.Peek(ctx, b.dead, 3)
		return err
	},
	"waiting": func(ctx context.Context, o *operate.Operator, b *box) error {
		_, err := o.Waiting(ctx, b.plan, operate.Filter{})
		return err
	},
	"replay": func(ctx context.Context, o *operate.Operator, b *box) error {
		_, err := o.Replay(ctx, b.plan, operate.MoveOptions{DryRun: true})
		return err
	},
	"discard": func(ctx context.Context, o *operate.Operator, b *box) error {
		_, err := o.Discard(ctx, b.plan, operate.MoveOptions{DryRun: true})
		return err
	},
	"return": func(ctx context.Context, o *operate.Operator, b *box) error {
		_, err := o.ReturnStranded(ctx, b.dead, operate.MoveOptions{DryRun: true})
		return err
	},
	"release": func(ctx context.Context, o *operate.Operator, b *box) error {
		_, err := o.Release(ctx, b.plan,
			operate.MoveOptions{Filter: operate.Filter{IDs: []string{"nobody"}}})
		return err
	},
}

// A policy under which a look may harm is set on all queues, as a user's and as an operator's. A
// message that is looked at, twice, or five times with MILLPOND_LONG, stays; or the look is
// refused. Under a delivery limit lists deleted the dead letters that they showed. A new key of a
// broker fails TestNoPolicyKeyTakesAMessageThatVerifyHasNotWarnedOf.
func TestLookingUnderAPolicyDeletesNothing(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	known := node.PolicyKeys(t)
	limit := definition{"delivery-limit": 1}
	late := definition{ // given back, a message of a quorum queue is ready again after 50 ms
		"delayed-retry-type": "all", "delayed-retry-min": 50, "delayed-retry-max": 50,
	}
	for _, c := range []struct {
		vhost, of string
		policy    definition
		types     []topology.QueueType
	}{
		{"user", "policies", limit, types},
		{"operator", "operator-policies", limit, types[:1]},
		{"late", "policies", late, types[:1]},
		{"late-operator", "operator-policies", late, types[:1]},
	} {
		node.Grant(t, testbroker.Everything(c.vhost, "guest"))
		for _, kind := range c.types {
			b := newBoxAt(t, node.URL()+c.vhost, "orders-"+string(kind), topology.PerQueue{Type: kind})
			b.delayBy(time.Hour)
			b.die(3)
			b.strand(b.waits(time.Hour).Name, 2)
			policy := maps.Clone(c.policy)
			maps.DeleteFunc(policy, func(key string, _ any) bool { // of a later version
				return !slices.Contains(known[c.of], key)
			})
			if len(policy) > 0 {
				testbroker.SetPolicy(t, api, c.of, c.vhost, "all", ".*", policy)
			}
			unsafe := kind == topology.Quorum && c.policy["delivery-limit"] != nil
			b.look(unsafe, operate.WithManagement(api))
			if kind == topology.Quorum {
				b.look(true)
			}
			b.depth(b.dead, 3)
			b.depth(b.waits(time.Hour).Name, 2)
		}
	}
}

// look looks in each way several times: under a limit of 1 the second time deletes. In the end the
// connection of calls that hold messages is cut, which counts on 4.3 too.
func (b *box) look(refused bool, options ...operate.Option) {
	b.t.Helper()
	times := 2
	if os.Getenv("MILLPOND_LONG") != "" {
		times = 5
	}
	o := rig.OpenOperator(b.t, b.url, options...)
	for range times {
		for name, look := range looks {
			err := look(b.t.Context(), o, b)
			if refused {
				require.ErrorIs(b.t, err, operate.ErrUnsafePeek, name)
			} else {
				require.NoError(b.t, err, name)
			}
		}
	}
	proxy := testbroker.NewProxy(b.t, b.url)
	o = rig.OpenOperator(b.t, proxy.URL(), options...)
	for range 4 {
		for range o.Dead(b.t.Context(), b.plan, operate.Filter{}, 0) {
			proxy.Cut()
			break
		}
	}
}
