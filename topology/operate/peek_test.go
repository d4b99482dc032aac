package operate_test

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// The same dead letters listed fifty times: all still there, in their order. Further arguments of
// the user change nothing.
func TestDeadLettersOutliveFiftyLooks(t *testing.T) {
	t.Parallel()
	const dead, looks = 40, 50 // 3.10 mixed up more than 32 that were given back together
	rig.Each(t, map[string]topology.PerQueue{
		"quorum": {}, "classic": {Type: topology.Classic},
		"arguments": {Dead: topology.DeadLetters{Arguments: amqp.Table{"x-max-length": int64(100)}}},
	}, func(t *testing.T, strategy topology.PerQueue) {
		b := newBoxAt(t, testbroker.URL(t), testbroker.Queue(t), strategy)
		rig.Fill(t, b.url, b.dead, dead)
		var want []string
		for i := range dead {
			want = append(want, strconv.Itoa(i))
		}
		for look := range looks {
			found, err := b.Peek(t.Context(), b.dead, dead+5)
			require.NoError(t, err)
			require.Equal(t, want, rig.Bodies(found), "look %d", look+1)
			require.Error(t, found[0].Ack(false), "a copy cannot be acked")
		}
		found, err := b.Peek(t.Context(), b.dead, 2)
		require.NoError(t, err)
		require.Len(t, found, 2)
		require.ElementsMatch(t, want, b.bodies(b.dead, dead))
	})
}

// filled is a quorum queue with letters on a node of its own, and how Erlang finds its process.
func filled(t *testing.T, n int, pad string) (b *box, eval func(code string) string) {
	t.Helper()
	node := testbroker.Private(t)
	b = newBoxAt(t, node.URL(), testbroker.Queue(t), topology.PerQueue{})
	for range n / 1000 {
		b.die(1000, func(_ int, _ *header.RetryState, m *amqp.Publishing) {
			m.Body = append(m.Body, pad...)
		})
	}
	b.depth(b.dead, n)
	find := fmt.Sprintf(`
		{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)),
		{Name, _} = amqqueue:get_pid(Q), Process = whereis(Name), `, b.dead)
	return b, func(code string) string { return strings.TrimSpace(node.Ctl(t, "eval", find+code)) }
}

// For each page of 500 letters a quorum queue went through its whole memory, so that a look at
// 400 000 letters took ten times as long as one at 100 000 (F55).
func TestALookCostsAQueueNoWholeCollections(t *testing.T) {
	t.Parallel()
	if version := testbroker.InstalledVersion(t); !strings.HasPrefix(version, "3.") {
		t.Skipf("%s shows it only with more letters", version)
	}
	const letters = 6000
	b, eval := filled(t, letters, strings.Repeat("p", 1500))
	require.Len(t, b.letters(operate.Filter{}), letters) // a message that was given back takes more
	eval(`Counter = spawn(fun() -> (fun Count(N) -> receive
			{trace, _, gc_major_end, _} -> Count(N + 1);
			{ask, From} -> From ! {collections, N};
			_ -> Count(N)
		end end)(0) end),
		register(collections, Counter),
		erlang:trace(Process, true, [garbage_collection, {tracer, Counter}]).`)
	require.Len(t, b.letters(operate.Filter{}), letters)
	collections, err := strconv.Atoi(eval(`collections ! {ask, self()},
		receive {collections, N} -> N end.`))
	require.NoError(t, err)
	require.Less(t, collections, 4)
}

// A queue that answers nothing for seconds gets its letters back in their order. The broker says
// meanwhile that it has no messages and no consumers, and that ended the care for the order.
func TestABusyQueueGetsItsLettersBackInOrder(t *testing.T) {
	t.Parallel()
	const letters = 3000
	b, eval := filled(t, letters, "")
	seen := 0
	for _, err := range b.Dead(t.Context(), b.plan, operate.Filter{}, 0) {
		require.NoError(t, err)
		if seen++; seen == letters {
			eval(`spawn(fun() -> erlang:suspend_process(Process), timer:sleep(4000) end).`)
		}
	}
	require.Equal(t, letters, seen)
	for i, l := range b.letters(operate.Filter{}) {
		require.Equal(t, fmt.Sprint("order-", i%1000), l.ID, "letter %d", i)
	}
}

// Peek looks at a quorum queue only where its delivery limit is proven to be out of
// reach, on every version, and at a classic queue always.
func TestPeekRefusesToDelete(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	url := node.URL()
	declare := func(name string, args amqp.Table) {
		rig.DeclareQueue(t, url, name, args)
		rig.Fill(t, url, name, 2)
	}
	const large = int64(1 << 30)
	declare("adopted", amqp.Table{"x-queue-type": "quorum", "x-max-length": int64(100)})
	declare("limited", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(5)})
	declare("raised",
		amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": large, "x-max-length": int64(100)})
	declare("lowered", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": large})
	declare("bound", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": large})
	declare("either", amqp.Table{"x-queue-type": "quorum"})
	declare("unread", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": large})
	declare("plain", amqp.Table{"x-queue-type": "classic"})
	declare("old", nil)
	set := func(kind, name, pattern string, definition map[string]any) {
		testbroker.SetPolicy(t, api, kind, "/", name, pattern, definition)
	}
	set("policies", "low", "^lowered$", map[string]any{"delivery-limit": 1, "max-length": 1000})
	set("operator-policies", "strict", "^bound$", map[string]any{"delivery-limit": 1})
	set("policies", "either-raised", "^either$", map[string]any{"delivery-limit": 2_000_000_000})
	set("policies", "either-default", "^either$", map[string]any{"max-length": 1000})
	defaults := strings.HasPrefix(node.Version(), "4.") // 20

	blind := rig.OpenOperator(t, url)
	seeing := rig.OpenOperator(t, url, operate.WithManagement(api))
	sure := rig.OpenOperator(t, url, operate.WithoutPolicyCheck())
	provisioned := rig.OpenOperator(t, url, operate.WithoutPolicyCheck(), operate.WithPreProvisioned())
	away := rig.OpenOperator(t, url, operate.WithManagement("http://guest:hush@127.0.0.1:1"))
	const unseen, no = "its policies could not be seen", ""
	byDefault := no
	if defaults {
		byDefault = "its delivery limit is 20 by default"
	}
	for _, c := range []struct {
		who      string
		operator *operate.Operator
		queue    string
		unsafe   string // a part of the reason
	}{
		{"blind", blind, "adopted", unseen},
		{"seeing", seeing, "adopted", byDefault},
		{"provisioned", provisioned, "adopted", strings.Replace(byDefault, "its delivery", "its", 1)},
		{"blind", blind, "limited", "its argument x-delivery-limit is 5"},
		{"seeing", seeing, "limited", "its argument x-delivery-limit is 5"},
		{"sure", sure, "limited", "its argument x-delivery-limit is 5"},
		{"blind", blind, "raised", unseen},
		{"seeing", seeing, "raised", no},
		{"sure", sure, "raised", no},
		{"provisioned", provisioned, "raised", no},
		{"away", away, "raised", "management API: "},
		{"blind", blind, "lowered", unseen},
		{"seeing", seeing, "lowered", `policy "low" sets delivery-limit to 1`},
		{"seeing", seeing, "bound", `operator policy "strict" sets delivery-limit to 1`},
		{"seeing", seeing, "either", byDefault},
		{"blind", blind, "plain", no},
		{"seeing", seeing, "plain", no},
		{"provisioned", provisioned, "plain", no},
		{"away", away, "plain", no},
		{"blind", blind, "old", no},
		{"seeing", seeing, "old", no},
	} {
		for look := range 3 {
			found, err := c.operator.Peek(t.Context(), c.queue, 10)
			what := fmt.Sprintf("%s at %s, look %d", c.who, c.queue, look+1)
			if c.unsafe != "" {
				require.ErrorIs(t, err, operate.ErrUnsafePeek, what)
				require.ErrorContains(t, err, c.unsafe, what)
				require.NotContains(t, err.Error(), "hush")
				if look == 0 {
					t.Logf("%s: %s: %v", node.Version(), what, err)
				}
				continue
			}
			require.NoError(t, err, what)
			require.Len(t, found, 2, what)
		}
		rig.AwaitDepth(t, url, c.queue, 2)
	}
	set("policies", "ahead", "^unread(?=$)", map[string]any{"max-length": 1000})
	_, err := seeing.Peek(t.Context(), "unread", 10)
	require.NoError(t, err, "its pattern cannot be read here, and it sets no limit")
	set("policies", "ahead", "^unread(?=$)", map[string]any{"delivery-limit": 1})
	_, err = seeing.Peek(t.Context(), "unread", 10)
	require.ErrorIs(t, err, operate.ErrUnsafePeek)
	require.ErrorContains(t, err, `the pattern "^unread(?=$)" of policy "ahead" cannot be read`)
	set("policies", "ahead", "^gone$", map[string]any{"delivery-limit": 1})
	err = operate.ExplainMissing(t.Context(), seeing, "bound", 3)
	require.ErrorContains(t, err, `3 messages that were given back are not in it`)
	require.ErrorContains(t, err, `operator policy "strict" sets delivery-limit to 1`)
	require.NotErrorIs(t, err, operate.ErrUnsafePeek, "it was done")
	// The commands of the errors are the way out.
	for _, queue := range []string{"adopted", "lowered", "bound"} {
		_, err := seeing.Peek(t.Context(), queue, 10)
		if err == nil {
			continue // no default limit
		}
		_, command, ok := strings.Cut(err.Error(), "rabbitmqctl ")
		require.True(t, ok, err)
		node.Ctl(t, strings.Fields(strings.ReplaceAll(command, "'", ""))...)
		_, err = seeing.Peek(t.Context(), queue, 10)
		require.NoError(t, err, command)
	}
	require.Contains(t, strings.Fields(node.Ctl(t, "list_policies")),
		`{"delivery-limit":2147483647,"max-length":1000}`, "the rest of the policy is kept")
}

// A list whose letters are not in the queue again says how many are missing; it said
// nothing. Where letters expire, or a consumer takes them, none is missing. Here the
// queue is deleted while the list holds its letters, and declared anew.
func TestLettersThatAreNotBackAreMissed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		arguments amqp.Table
		expire    string // of each letter
		consumed  bool
		missing   bool
		limit     int
	}{
		{
			name:      "quorum",
			arguments: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30)},
			missing:   true,
		},
		{name: "classic", arguments: amqp.Table{"x-queue-type": "classic"}, missing: true},
		{
			name: "listed with a limit", arguments: amqp.Table{"x-queue-type": "classic"}, limit: 3,
			missing: true,
		},
		{
			name: "with a time to live",
			arguments: amqp.Table{
				"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30), "x-message-ttl": int64(1),
			},
		},
		{
			name:      "with a length",
			arguments: amqp.Table{"x-queue-type": "classic", "x-max-length": int64(1)},
		},
		{name: "with expirations", arguments: amqp.Table{"x-queue-type": "classic"}, expire: "86400000"},
		{name: "consumed", arguments: amqp.Table{"x-queue-type": "classic"}, consumed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, topology.Quorum)
			queue := testbroker.Queue(t)
			declare := func(args amqp.Table) {
				rig.DeclareQueue(t, b.url, queue, args)
			}
			lasting := maps.Clone(c.arguments)
			delete(lasting, "x-message-ttl")
			delete(lasting, "x-max-length")
			declare(lasting)
			b.publish(queue, amqp.Publishing{Expiration: c.expire}, amqp.Publishing{Expiration: c.expire},
				amqp.Publishing{Expiration: c.expire})
			b.plan.Dead.RoutingKey = queue
			seen := 0
			var err error
			for _, listed := range b.Dead(t.Context(), b.plan, operate.Filter{}, c.limit) {
				if err = listed; err != nil {
					break
				}
				if seen++; seen == 3 {
					rig.DeleteQueue(t, b.url, queue)
					declare(c.arguments)
					if c.consumed {
						_, err := testbroker.Channel(t, b.url).Consume(queue, "", true, false, false, false, nil)
						require.NoError(t, err)
					}
				}
			}
			require.Equal(t, 3, seen)
			if !c.missing {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(
				t, err,
				"3 messages that were given back are not in it: another client has taken them, "+
					"or the broker has deleted them",
			)
			t.Log(err)
		})
	}
}
