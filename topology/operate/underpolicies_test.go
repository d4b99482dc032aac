package operate_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// calmKeys has each key of a policy that RabbitMQ 3.10, 4.0 and 4.3 know, with a value under which
// no message leaves a queue that is left alone. A key that is new in a broker fails the test: find
// out what becomes of a message that is looked at.
var calmKeys = definition{
	"alternate-exchange": "amq.fanout", "dead-letter-exchange": "",
	"dead-letter-routing-key": "elsewhere", "dead-letter-strategy": "at-least-once",
	"expires": 86_400_000, "max-length": 1_000_000, "max-length-bytes": 1 << 30,
	"message-ttl": 86_400_000, "overflow": "reject-publish", "queue-version": 2,

	"delivery-limit": 1, // bites who looks

	// Given back, a message of a quorum queue is ready again after 50 ms.
	"delayed-retry-type": "all", "delayed-retry-min": 50, "delayed-retry-max": 50,

	"consumer-timeout": 60_000, "consumer-disconnected-timeout": 60_000,

	// Where queues live and how they are stored.
	"ha-mode": "exactly", "ha-params": 1, "ha-promote-on-failure": "always",
	"ha-promote-on-shutdown": "always", "ha-sync-mode": "automatic", "ha-sync-batch-size": 10,
	"initial-cluster-size": 1, "target-group-size": 1, "max-in-memory-bytes": 1 << 30,
	"max-in-memory-length": 1_000_000, "queue-leader-locator": "client-local",
	"queue-master-locator": "client-local", "queue-mode": "lazy",

	// Of streams.
	"max-age": "1D", "stream-filter-size-bytes": 32, "stream-max-segment-size-bytes": 1_000_000,
}

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

// Each policy that the broker knows is set on all queues, as a user's and as an operator's. A
// message that is looked at, twice, or five times with MILLPOND_LONG, stays; or the look is
// refused. Under a delivery limit lists deleted the dead letters that they showed.
func TestLookingUnderAPolicyDeletesNothing(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	known := node.PolicyKeys(t)
	limit := func(key string) bool { return key == "delivery-limit" }
	late := func(key string) bool { return strings.HasPrefix(key, "delayed-retry-") }
	rest := func(key string) bool { return !limit(key) && !late(key) }
	for _, c := range []struct {
		vhost  string
		kinds  []string
		choose func(key string) bool
		types  []topology.QueueType
	}{
		{"user", []string{"policies"}, limit, types},
		{"operator", []string{"operator-policies"}, limit, types[:1]},
		{"late", []string{"policies", "operator-policies"}, late, types[:1]}, // of quorum queues alone
		{"rest", []string{"policies", "operator-policies"}, rest, types},
	} {
		node.Grant(t, testbroker.Everything(c.vhost, "guest"))
		for _, kind := range c.types {
			b := newBoxAt(t, node.URL()+c.vhost, "orders-"+string(kind), topology.PerQueue{Type: kind})
			b.delayBy(time.Hour)
			b.die(3)
			b.strand(b.waits(time.Hour).Name, 2)
			for _, of := range c.kinds {
				calm := definition{}
				for _, key := range known[of] {
					value, listed := calmKeys[key]
					require.True(t, listed, "the policy key %q is new: see calmKeys", key)
					refused := key == "queue-master-locator" && strings.HasPrefix(node.Version(), "4.3")
					if c.choose(key) && !refused {
						calm[key] = value
					}
				}
				if len(calm) > 0 { // else of a later version
					testbroker.SetPolicy(t, api, of, c.vhost, "all", ".*", calm)
				}
			}
			unsafe := kind == topology.Quorum && c.choose("delivery-limit")
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
