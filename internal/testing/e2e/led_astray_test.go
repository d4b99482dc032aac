package e2e_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// serveWrong starts a service whose handler must not be called. It counts the calls.
func serveWrong(t *testing.T, c rig.Config) (*rig.Service, *rig.Timeline) {
	t.Helper()
	var wrong rig.Timeline
	c.Handle = wrong.Succeed
	return rig.Start(t, c), &wrong
}

const (
	home  = "home"  // the queue that a retry belongs to
	other = "other" // the queue to which a policy leads it
)

// Given a policy with dead-letter-routing-key, when it leads the retries of one service to another,
// then the other sends them home and its handler is not called. A bug once called it.
func TestRetriesThatAPolicyLeadsToAnotherServiceComeHome(t *testing.T) {
	t.Parallel()
	const messages, delay = 10, 1300 * time.Millisecond
	for _, name := range []string{"shared quorum", "levels quorum"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, strategy := ruledBy(t, name), rig.Strategies[name](t)
			config := rig.Config{URL: url, Queue: other, Strategy: strategy, Policy: backoff.List{delay}}
			victim, wrong := serveWrong(t, config)
			var mu sync.Mutex
			began, attempts, done := map[string]time.Time{}, map[string][]int{}, 0
			config.Queue = home
			config.Handle = func(msg *message.Message) error {
				mu.Lock()
				defer mu.Unlock()
				body, attempt := string(msg.Payload), middleware.Attempt(msg.Context())
				attempts[body] = append(attempts[body], attempt)
				if attempt == 1 {
					began[body] = time.Now()
					return rig.ErrFailed
				}
				if waited := time.Since(began[body]); waited < delay-rig.Grace {
					t.Errorf("message %s came back after %v", body, waited)
				}
				done++
				return nil
			}
			r := rig.Start(t, config)
			for i := range messages {
				r.Publish(amqp.Publishing{
					Body: fmt.Append(nil, i), Priority: 9, Headers: amqp.Table{"number": int32(i)},
				})
			}
			rig.WaitFor(t, "the retries", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return done == messages
			})
			victim.Stop()
			r.Stop()
			require.Zero(t, wrong.Count(), "retries that the wrong handler got")
			for body, calls := range attempts {
				require.Equal(t, []int{1, 2}, calls, "message %s", body)
			}
			lines := victim.Logs.Saying("A retry of another queue came here")
			require.Len(t, lines, 1, "said once")
			key := strings.Split(rules[name], `"`)[3]
			for _, want := range []string{
				"belongs_to:" + home, "queue:" + other, "routing_key:" + key, "list_policies",
			} {
				require.Contains(t, lines[0], want)
			}
			stranded := r.Plan.Queues[len(r.Plan.Queues)-2].Name
			for _, queue := range []string{home, other, home + ".dlq", other + ".dlq", stranded} {
				require.Zero(t, testbroker.Depth(t, url, queue), queue)
			}
		})
	}
}

// Given a retry that a policy leads to another service, when its own queue is gone, then it is
// stranded, as without the policy.
func TestARetryThatAPolicyLeadsAwayAndHasNoHomeIsStranded(t *testing.T) {
	t.Parallel()
	url, strategy := ruledBy(t, "homeless"), rig.Shared(t, topology.Quorum)
	policy := backoff.List{3 * time.Second}
	config := rig.Config{URL: url, Queue: other, Strategy: strategy, Policy: policy}
	_, wrong := serveWrong(t, config)
	sendAndStop(t, config, "homeless")
	rig.DeleteQueue(t, url, home)
	stranded := rig.Take(t, url, strategy.Prefix+".stranded")
	require.Equal(t, home, stranded.RoutingKey)
	require.Equal(t, home, stranded.Headers[header.Queue])
	require.Equal(t, "1", stranded.Headers[keys.Failures])
	require.Zero(t, wrong.Count())
}

// sendAndStop lets a service on the queue home fail for one message, and stops it while the message
// waits.
func sendAndStop(t *testing.T, c rig.Config, body string) {
	t.Helper()
	c.Queue, c.Handle = home, rig.Fail
	r := rig.Start(t, c)
	r.Send(body)
	rig.WaitFor(t, "the message to wait", func() bool {
		return r.Logs.Said("Message will be retried") > 0
	})
	r.Stop()
}

// requireMisdirected requires a dead letter in the other service's DLQ, in the name of the queue
// home, and a log of the other service that names it once.
func requireMisdirected(t *testing.T, url string, victim *rig.Service) amqp.Delivery {
	t.Helper()
	dead := rig.Take(t, url, other+".dlq")
	require.Equal(t, string(header.ReasonMisdirected), dead.Headers[header.DeadReason])
	require.Equal(t, home, dead.Headers[header.DeadQueue])
	require.Equal(t, "1", dead.Headers[header.DeadFailures])
	const said = "Message of another queue cannot be sent on, dead-lettering it"
	require.Len(t, victim.Logs.Saying(said), 1)
	return dead
}

// Given a service that may not publish to the exchange of the way back, when it gets a retry of
// another queue, then it dead-letters the retry in the name of that queue.
func TestARetryThatAPolicyLeadsAwayAndCannotGoOnIsDeadLettered(t *testing.T) {
	t.Parallel()
	const vhost = "stuck"
	url := ruledBy(t, vhost)
	strategy, policy := rig.Shared(t, topology.Quorum), backoff.List{time.Second}
	config := rig.Config{URL: url, Queue: home, Strategy: strategy, Policy: policy, Handle: rig.Fail}
	r := rig.Start(t, config)
	_, sub := rig.OpenSubscriber(t, url, strategy, policy)
	require.NoError(t, sub.SubscribeInitialize(other))
	plan, err := topology.PlanFor(strategy, other, policy)
	require.NoError(t, err)
	node, least := commonNode(t), plan.Permissions(false)
	node.Grant(t, testbroker.Grant{
		VHost: vhost, User: vhost, Configure: least.Configure, Write: least.Write, Read: least.Read,
	})
	config.URL, config.AdminURL, config.Queue = node.URLOf(vhost)+vhost, url, other
	config.ClientOptions = []topology.Option{topology.WithPreProvisioned()}
	told := hooked(&config)
	victim, wrong := serveWrong(t, config)
	r.Publish(amqp.Publishing{Body: []byte("stuck"), Priority: 7})
	dead := requireMisdirected(t, url, victim)
	requireToldOfMisdirected(t, told, "stuck")
	require.Equal(t, uint8(7), dead.Priority)
	require.Zero(t, wrong.Count())
}

// Given a retry that a policy leads to another service, when its own queue refuses it for as long
// as a message may be held, then it is dead-lettered. A bug once set it aside for the wrong queue,
// and the wrong handler got it.
func TestARetryThatAPolicyLeadsAwayAndItsQueueRefusesIsDeadLettered(t *testing.T) {
	t.Parallel()
	url := ruledBy(t, "full")
	strategy, policy := rig.Shared(t, topology.Quorum), backoff.List{time.Second}
	config := rig.Config{URL: url, Queue: other, Strategy: strategy, Policy: policy}
	_, sub := rig.OpenSubscriber(t, url, strategy, policy)
	require.NoError(t, sub.SubscribeInitialize(other))
	sendAndStop(t, config, "refused")
	ch := testbroker.Channel(t, url)
	rig.DeleteQueue(t, url, home)
	full := amqp.Table{"x-max-length": int32(0), "x-overflow": "reject-publish"}
	rig.DeclareQueue(t, url, home, full)
	require.NoError(t, ch.QueueBind(home, home, strategy.Prefix+".return", false, nil))
	held := topology.WithConsumerTimeout(4 * time.Second) // for two seconds
	config.SubscriberOptions = []topology.SubscriberOption{held}
	told := hooked(&config)
	victim, wrong := serveWrong(t, config)
	require.Equal(t, "refused", string(requireMisdirected(t, url, victim).Body))
	requireToldOfMisdirected(t, told, "refused")
	require.Zero(t, wrong.Count())
}

// Given Via and a policy whose key leads to a sibling, when a message fails, then its own queue
// gets each retry, and the sibling drops its copy. A bug once gave the copy to the sibling's
// handler.
func TestASiblingDropsTheCopyThatAPolicyBroughtIt(t *testing.T) {
	t.Parallel()
	config := rig.Config{
		URL: ruledBy(t, "sibling"), Strategy: rig.SharedVia(t, "events"),
		Policy:    backoff.List{200 * time.Millisecond, 300 * time.Millisecond},
		Configure: rig.OnTopic("events", "mail.#"),
	}
	sibling, wrong := serveWrong(t, config)
	arrivals := make(chan rig.Arrival, 10)
	collect := rig.Collect(arrivals)
	config.Configure = rig.OnTopic("events", "order.#")
	config.Handle = func(msg *message.Message) error {
		_, _ = collect(msg)
		if middleware.Attempt(msg.Context()) < 3 {
			return rig.ErrFailed
		}
		return nil
	}
	r := rig.Start(t, config)
	rig.Publish(t, r.URL, "events", "order.created", amqp.Publishing{})
	for attempt := range 3 {
		got := rig.Await(t, arrivals)
		require.Equal(t, attempt+1, got.Attempt)
		require.Equal(t, "order.created", got.Raw.RoutingKey)
	}
	const said = "through the exchange with another routing key"
	rig.WaitFor(t, "the sibling to say so", func() bool { return len(sibling.Logs.Saying(said)) == 1 })
	rig.WaitFor(t, "empty queues", func() bool { return sibling.Depth("")+r.Depth("") == 0 })
	r.Stop()
	sibling.RequireNothingLeft(0)
	require.Empty(t, arrivals)
	require.Zero(t, wrong.Count())
	require.Len(t, r.Logs.Saying(said), 1)
}
