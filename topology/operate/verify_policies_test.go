package operate_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/internal/policies"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	at "github.com/millpond-go/millpond/topology/management"
	"github.com/millpond-go/millpond/topology/operate"
)

// overruled returns the findings about policies.
func overruled(t testing.TB, o *operate.Operator, plan topology.Plan) []operate.Finding {
	t.Helper()
	return slices.DeleteFunc(rig.Verify(t, o, plan), func(f operate.Finding) bool {
		return f.Problem != operate.Overruled
	})
}

// applies reports whether audit expects the broker to apply a policy with a key to a type of queue,
// and whether that is certain. It requires that the key is known.
func applies(t testing.TB, key, kind string) (applied, certain bool) {
	t.Helper()
	of := func(name, key string, priority int) management.Policy {
		return management.Policy{
			Name: name, Pattern: ".*", ApplyTo: "queues", Priority: priority,
			Definition: management.Object{key: "any"},
		}
	}
	list := &policies.Set{User: []management.Policy{of("high", key, 1), of("low", "expires", 0)}}
	plan := audit.Plan{Queue: "orders"}
	known := map[string]audit.Facts{"orders": {Kind: kind}}
	findings, _ := list.Judge(plan, known, audit.Version{}, "/")
	for _, f := range findings {
		require.NotContains(t, f.Text, "does not know", key)
	}
	found := list.Of("orders", kind)
	names := map[string]bool{}
	for _, r := range found.Rules {
		names[r.Policy.Name] = true
	}
	return names["high"], !names["high"] || !names["low"]
}

// Everything about policies that takes a real broker, on one node, each in a new vhost. The
// user has the tag monitoring and no permission in the vhost that would show more.
func TestVerifyNamesAPolicyAtOnce(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	vhosts := []string{"soon", "exempt", "log"}
	var grants []testbroker.Grant
	for _, vhost := range vhosts {
		grants = append(grants, testbroker.Everything(vhost, "guest"),
			testbroker.Grant{VHost: vhost, User: "watcher", Configure: "^$", Write: "^$", Read: "^$"})
	}
	node.Grant(t, grants...)
	node.Ctl(t, "set_user_tags", "watcher", "monitoring")
	watcher := strings.Replace(api, "guest:guest", "watcher:watcher", 1)
	watching := operate.WithManagement(watcher)
	policy := backoff.List{time.Second}
	of := func(
		t *testing.T, vhost, queue string, strategy topology.Strategy,
	) (*operate.Operator, topology.Plan) {
		t.Helper()
		return opened(t, node.URL()+vhost, queue, strategy, policy, watching)
	}

	// The management API shows the policies of a queue up to nine seconds late (F35).
	t.Run("declare and verify never passes wrongly", func(t *testing.T) {
		t.Parallel()
		old, oldPlan := of(t, "soon", "old", topology.PerQueue{})
		rig.Provision(t, node.URL()+"soon", topology.PerQueue{}, "old", policy)
		require.Empty(t, overruled(t, old, oldPlan))
		rounds := 10
		if os.Getenv("MILLPOND_LONG") != "" {
			rounds = 50
		}
		for i := range rounds {
			o, plan := old, oldPlan
			if i%2 == 0 { // queues that are new
				var err error
				plan, err = topology.PerQueue{Type: topology.Classic}.Plan(fmt.Sprintf("new-%d", i), policy)
				require.NoError(t, err)
				rig.DeclareQueue(t, node.URL()+"soon", plan.Queue, nil)
			}
			testbroker.SetPolicy(t, api, "policies", "soon", "retention", `\.dlq$`,
				definition{"message-ttl": 60_000 + i})
			require.NoError(t, o.Declare(t.Context(), plan))
			findings := overruled(t, o, plan)
			require.Len(t, findings, 1, "round %d", i)
			require.Equal(t, operate.Critical, findings[0].Severity)
			require.Equal(t, plan.Dead.RoutingKey, findings[0].Name)
			require.Contains(t, findings[0].Text,
				fmt.Sprintf(`policy "retention" sets message-ttl to %d`, 60_000+i))
			testbroker.Remove(t, api, "policies", "soon", "retention")
		}
		require.Empty(t, overruled(t, old, oldPlan))
	})

	// The broker says to which type of queue it applies no policy with a key.
	t.Run("every key of the broker is known", func(t *testing.T) {
		t.Parallel()
		keys := node.PolicyKeys(t)
		for _, kind := range []string{audit.Classic, audit.Quorum} {
			unfit := strings.Fields(node.Ctl(t, "eval", fmt.Sprintf(`[io:format("~s ", [K]) ||
				K <- maps:get(unsupported_policies, rabbit_%s_queue:capabilities())].`, kind)))
			require.NotEmpty(t, unfit)
			for _, key := range slices.Concat(keys["policies"], keys["operator-policies"]) {
				applied, certain := applies(t, key, kind)
				require.True(t, !certain || applied == !slices.Contains(unfit, key), "%s, %s", key, kind)
			}
		}
	})

	t.Run("the way out works", func(t *testing.T) {
		t.Parallel()
		o, plan := of(t, "exempt", "orders", topology.PerQueue{})
		rig.Provision(t, node.URL()+"exempt", topology.PerQueue{}, "orders", policy)
		rig.DeclareExchange(t, node.URL()+"exempt", "orders.open", "fanout")
		plan.Exchanges = append(plan.Exchanges, topology.Exchange{Name: "orders.open", Kind: "fanout"})
		testbroker.SetPolicy(t, api, "policies", "exempt", "everything", ".*", definition{
			"message-ttl": 500, "overflow": "drop-head", "alternate-exchange": "amq.fanout",
			"expires": 3600000,
		})
		ran := map[string]bool{}
		for _, f := range overruled(t, o, plan) {
			_, command, is := strings.Cut(f.Text, "rabbitmqctl ")
			require.True(t, is, f)
			if !ran[command] {
				ran[command] = true
				node.Ctl(t, rig.ShellWords(t, command)...)
			}
		}
		require.Len(t, ran, 4, "one for each queue and exchange")
		require.Empty(t, overruled(t, o, plan))
		rig.Fill(t, node.URL()+"exempt", "orders.dlq", 10)
		<-time.After(time.Second) // twice the TTL
		require.Equal(t, 10, testbroker.Depth(t, node.URL()+"exempt", "orders.dlq"),
			"the broker does as Verify says")
	})

	t.Run("the Subscriber says it", func(t *testing.T) {
		t.Parallel()
		const line = "A policy of the broker may lose or misdirect messages"
		testbroker.SetPolicy(t, api, "policies", "log", "retention", ".*", definition{"message-ttl": 50})
		url := node.URL() + "log"
		client, logs := rig.OpenLogged(t, url, topology.Levels{Max: time.Hour},
			topology.WithManagement(at.At(watcher)))
		// Subscribe asks for 3 s, and consumes all the same where a busy node has not answered by then.
		rig.WaitFor(t, "an answer within the 3 s of a Subscribe", func() bool {
			require.NoError(t, rig.SubscribeError(t, client, rig.QueueConfig(url), "orders", policy))
			return logs.Said(line) > 0
		})
		require.Equal(t, 4, logs.Said(line), "one for each role: %s", logs.Text())
		require.Contains(t, logs.Text(),
			`critical: queue "orders.dlq": policy "retention" sets message-ttl to 50`)
		require.Contains(t, logs.Text(), "alike:15", "the other wait queues")
	})
}

// The API of a cluster shows queues on too few nodes,
// alarms, a limit that is too low. A node alone has no replicas to miss.
func TestVerifyNamesFewReplicasAndAlarms(t *testing.T) {
	t.Parallel()
	url, queue, policy := testbroker.URL(t), testbroker.Queue(t), backoff.List{time.Second}
	rig.DeclareQueue(t, url, queue,
		amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30)})
	nodes := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.EscapedPath(); {
		case path == "/api/nodes":
			fmt.Fprint(w, nodes)
		case path == "/api/feature-flags":
			w.WriteHeader(http.StatusUnauthorized) // as 3.10 answers the tag monitoring
		case strings.HasPrefix(path, "/api/queues/"):
			kind, members := "quorum", `["a@host"]`
			if strings.HasSuffix(path, "dlq") {
				kind, members = "classic", "null"
			}
			fmt.Fprintf(w,
				`{"type":%q,"durable":true,"arguments":{"x-delivery-limit":1073741824},"members":%s}`, kind,
				members)
		default:
			fmt.Fprint(w, "[]")
		}
	}))
	t.Cleanup(server.Close)
	o, plan := opened(t, url, queue, topology.PerQueue{}, policy,
		operate.WithManagement("http://u:p@"+server.Listener.Addr().String()))
	require.NoError(t, o.Declare(t.Context(), plan))
	look := func() (texts []string) {
		for _, f := range rig.Verify(t, o, plan) {
			if !strings.Contains(f.Text, "feature flags") {
				texts = append(texts, strings.ReplaceAll(f.String(), queue, "orders"))
			}
		}
		return texts
	}
	nodes = `[{"name":"a@host","running":true,"mem_alarm":false,"disk_free_limit":50000000}]`
	require.Empty(t, look(), "a node alone")
	nodes = `[{"name":"a@host","running":true,"mem_alarm":true,"disk_free_alarm":true,
		"disk_free_limit":50000000},{"name":"b@host","running":true},
		{"name":"c@host","running":false,"disk_free_limit":"unknown"}]`
	require.Equal(t, []string{
		`warning: broker "a@host": its memory alarm stops all publishing, so that failed messages ` +
			`are held unacked: free memory, or raise vm_memory_high_watermark`,
		`warning: broker "a@host": its disk alarm stops all publishing, so that failed messages ` +
			`are held unacked: free disk space, or lower disk_free_limit`,
		`warning: broker "a@host": publishing is stopped only when 50 MB of its disk are left, ` +
			`and a disk that is full ends the node: ` +
			`set disk_free_limit.absolute = 2GB or more in rabbitmq.conf`,
		`warning: broker "replicas": each of these classic queues is on one node of 3, and out of ` +
			`reach while that node is away: "orders.dlq"; a quorum queue is on several`,
		`warning: broker "replicas": each of these quorum queues is on fewer than 3 nodes of 3, and ` +
			`loses its majority sooner: "orders", "orders.wait.1s"; for each node that is missing run: ` +
			`rabbitmq-queues grow 'b@host' all --vhost-pattern '^/$' ` +
			`--queue-pattern '^(orders|orders\.wait\.1s)$'`,
	}, unescaped(look()))
	nodes = `no JSON`
	texts := look()
	require.Len(t, texts, 1)
	require.Contains(t, texts[0], "alarms and replicas were not looked at")
}

// unescaped takes the quoting of a test queue's name out of a pattern.
func unescaped(texts []string) []string {
	for i, text := range texts {
		texts[i] = strings.ReplaceAll(text, `\-`, "-")
	}
	return texts
}
