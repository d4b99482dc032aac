package topology_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// ruled is the node of all tests that set policies on everything in a vhost.
var ruled struct {
	once sync.Once
	node *testbroker.Node
	err  error
}

// rules are the vhosts of that node, each with the definition of a policy on everything.
var rules = map[string]string{
	"alternate":      `{"alternate-exchange": "sink"}`,
	"nowhere":        `{"dead-letter-routing-key": "nowhere"}`,
	"shared quorum":  `{"dead-letter-routing-key": "other"}`,
	"shared classic": `{"dead-letter-routing-key": "other"}`,
	// With these bits a message passes each level at once.
	"levels quorum": `{"dead-letter-routing-key": "0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.other"}`,
	"homeless":      `{"dead-letter-routing-key": "other"}`,
	"stuck":         `{"dead-letter-routing-key": "other"}`,
	"full":          `{"dead-letter-routing-key": "other"}`,
	"sibling":       `{"dead-letter-routing-key": "mail.sent"}`,
}

// ruledNode starts that node once, with its vhosts. It ends with the test binary.
func ruledNode(t testing.TB) *testbroker.Node {
	t.Helper()
	testbroker.RequireNode(t)
	ruled.once.Do(func() {
		if ruled.node, ruled.err = testbroker.Start(context.Background()); ruled.err != nil {
			return
		}
		var list []string
		for vhost, definition := range rules {
			list = append(list, fmt.Sprintf("{<<%q>>, <<%q>>}", vhost, definition))
		}
		// All in one rabbitmqctl, each of which takes most of a second.
		_, ruled.err = ruled.node.RunCtl(context.Background(), "eval", fmt.Sprintf(`[begin
			ok = rabbit_vhost:add(V, <<"test">>),
			ok = rabbit_auth_backend_internal:set_permissions(<<"guest">>, V, <<".*">>, <<".*">>, <<".*">>, <<"test">>),
			ok = rabbit_policy:parse_set(V, <<"everything">>, <<".*">>, D, <<"0">>, <<"all">>, <<"test">>)
		end || {V, D} <- [%s]].`, strings.Join(list, ", ")))
	})
	require.NoError(t, ruled.err)
	return ruled.node
}

func endRuledNode() error {
	if ruled.node == nil {
		return nil
	}
	return ruled.node.Close()
}

// ruledBy returns the URL of a vhost of that node.
func ruledBy(t testing.TB, vhost string) string {
	t.Helper()
	return ruledNode(t).URL() + url.PathEscape(vhost)
}

// A wait queue has vanished, and a policy names an alternate exchange for every
// exchange: that took the failed message, which was never retried.
func TestNothingPassesByUnderAnAlternateExchangePolicy(t *testing.T) {
	t.Parallel()
	url := ruledBy(t, "alternate")
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.ExchangeDeclare("sink", "fanout", true, false, false, false, nil))
	_, err := ch.QueueDeclare("sink", true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, ch.QueueBind("sink", "", "sink", false, nil))
	t.Run("strategies", func(t *testing.T) {
		for _, name := range []string{"quorum", "attempt quorum", "shared quorum", "levels quorum", "returning quorum"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				queue, strategy := testbroker.Queue(t), rig.Strategies[name](t)
				plan, err := strategy.Plan(queue, []time.Duration{time.Second})
				require.NoError(t, err)
				own := testbroker.Channel(t, url)
				var calls rig.Timeline
				r := rig.Start(t, rig.Config{
					URL: url, Queue: queue, Strategy: strategy, Policy: backoff.List{time.Second},
					Handler: func(*message.Message) ([]*message.Message, error) {
						if calls.Add() > 1 {
							return nil, nil
						}
						for _, q := range plan.Queues {
							if _, err := own.QueueDelete(q.Name, false, false, false); err != nil {
								t.Error(err)
							}
						}
						return nil, rig.ErrFailed
					},
				})
				r.Publish(amqp.Publishing{Body: []byte("here")})
				rig.WaitFor(t, "the retry", func() bool { return calls.Count() == 2 })
				lines := r.Logs.Saying("A part of the plan had vanished and was declared again")
				require.Len(t, lines, 1)
				require.True(t, slices.ContainsFunc(plan.Queues, func(q topology.Queue) bool {
					return q.Delay > 0 && strings.Contains(lines[0], fmt.Sprintf("vanished:queue %q", q.Name))
				}), lines[0])
			})
		}
	})
	require.Zero(t, testbroker.Depth(t, url, "sink"))
}

// A policy with dead-letter-routing-key leads the retries of one service to another
// one, whose handler took them for its own.
func TestRetriesThatAPolicyLeadsToAnotherServiceComeHome(t *testing.T) {
	t.Parallel()
	const messages = 10
	for _, name := range []string{"shared quorum", "shared classic", "levels quorum"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const home, other = "home", "other"
			url, strategy := ruledBy(t, name), rig.Strategies[name](t)
			var mu sync.Mutex
			began, attempts := map[string]time.Time{}, map[string][]int{}
			serve := func(queue string, handler message.HandlerFunc) *rig.Service {
				return rig.Start(t, rig.Config{URL: url, Queue: queue, Strategy: strategy, Policy: backoff.List{1300 * time.Millisecond}, Handler: handler})
			}
			var wrong rig.Timeline
			victim := serve(other, func(*message.Message) ([]*message.Message, error) {
				wrong.Add()
				return nil, nil
			})
			done := 0
			r := serve(home, func(msg *message.Message) ([]*message.Message, error) {
				mu.Lock()
				defer mu.Unlock()
				body := string(msg.Payload)
				attempts[body] = append(attempts[body], middleware.Attempt(msg.Context()))
				if attempt := middleware.Attempt(msg.Context()); attempt == 1 {
					began[body] = time.Now()
					return nil, rig.ErrFailed
				}
				if waited := time.Since(began[body]); waited < 1300*time.Millisecond-rig.Grace {
					t.Errorf("message %s came back after %v", body, waited)
				}
				done++
				return nil, nil
			})
			for i := range messages {
				r.Publish(amqp.Publishing{Body: fmt.Append(nil, i), Priority: 9, Headers: amqp.Table{"number": int32(i)}})
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
			for _, want := range []string{"belongs_to:" + home, "queue:" + other, "routing_key:" + strings.Split(rules[name], `"`)[3], "list_policies"} {
				require.Contains(t, lines[0], want)
			}
			for _, queue := range []string{home, other, home + ".dlq", other + ".dlq", r.Plan.Queues[len(r.Plan.Queues)-2].Name} {
				require.Zero(t, testbroker.Depth(t, url, queue), queue)
			}
		})
	}
}

// The queue of a message that came to another service is gone: the message is
// stranded, where it would be without the policy, and the Subscriber says so.
func TestARetryThatAPolicyLeadsAwayAndHasNoHomeIsStranded(t *testing.T) {
	t.Parallel()
	const home, other = "home", "other"
	url, strategy := ruledBy(t, "homeless"), rig.Shared(t, topology.Quorum)
	policy := backoff.List{3 * time.Second}
	var wrong rig.Timeline
	victim := rig.Start(t, rig.Config{
		URL: url, Queue: other, Strategy: strategy, Policy: policy, ClientOptions: []topology.Option{topology.WithStrandedPause(100 * time.Millisecond)},
		Handler: func(*message.Message) ([]*message.Message, error) {
			wrong.Add()
			return nil, nil
		},
	})
	r := rig.Start(t, rig.Config{URL: url, Queue: home, Strategy: strategy, Policy: policy, Handler: func(*message.Message) ([]*message.Message, error) {
		return nil, rig.ErrFailed
	}})
	r.Publish(amqp.Publishing{Body: []byte("homeless")})
	rig.WaitFor(t, "the message to wait", func() bool { return strings.Contains(r.Logs.Text(), "Message will be retried") })
	r.Stop()
	_, err := testbroker.Channel(t, url).QueueDelete(home, false, false, false)
	require.NoError(t, err)
	rig.WaitFor(t, "the log to say it", func() bool { return len(victim.Logs.Saying("Messages are stranded")) > 0 })
	stranded := rig.Take(t, url, strategy.Prefix+".stranded")
	require.Equal(t, home, stranded.RoutingKey)
	require.Equal(t, home, stranded.Headers[header.Queue])
	require.Equal(t, "1", stranded.Headers[header.Failures])
	require.Zero(t, wrong.Count())
}

// A service that may not publish behind the return exchange dead-letters a message that is not
// its own, in the name of the queue that the message belongs to.
func TestARetryThatAPolicyLeadsAwayAndCannotGoOnIsDeadLettered(t *testing.T) {
	t.Parallel()
	const home, other, vhost = "home", "other", "stuck"
	url := ruledBy(t, vhost)
	strategy, policy := rig.Shared(t, topology.Quorum), backoff.List{time.Second}
	r := rig.Start(t, rig.Config{URL: url, Queue: home, Strategy: strategy, Policy: policy, Handler: func(*message.Message) ([]*message.Message, error) {
		return nil, rig.ErrFailed
	}})
	client, sub := rig.OpenSubscriber(t, url, strategy, policy)
	require.NoError(t, sub.SubscribeInitialize(other))
	plan, err := client.Plan(other, topology.ForPolicy(policy))
	require.NoError(t, err)
	node, least := ruledNode(t), plan.Permissions(false)
	node.Grant(t, testbroker.Grant{VHost: vhost, User: vhost, Configure: least.Configure, Write: least.Write, Read: least.Read})
	var wrong rig.Timeline
	victim := rig.Start(t, rig.Config{
		URL: node.URLOf(vhost) + vhost, AdminURL: url, Queue: other, Strategy: strategy, Policy: policy,
		ClientOptions: []topology.Option{topology.WithPreProvisioned()},
		Handler: func(*message.Message) ([]*message.Message, error) {
			wrong.Add()
			return nil, nil
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("stuck"), Priority: 7})
	dead := rig.Take(t, url, other+".dlq")
	require.Equal(t, string(header.ReasonMisdirected), dead.Headers[header.DeadReason])
	require.Equal(t, home, dead.Headers[header.DeadQueue])
	require.Equal(t, "1", dead.Headers[header.DeadFailures])
	require.Equal(t, uint8(7), dead.Priority)
	require.Len(t, victim.Logs.Saying("Message of another queue cannot be sent on, dead-lettering it"), 1)
	require.Zero(t, wrong.Count())
}

// Where its own queue refuses the message for as long as the message may be held, the
// message was set aside for the wrong queue, whose handler then got it as its own.
func TestARetryThatAPolicyLeadsAwayAndItsQueueRefusesIsDeadLettered(t *testing.T) {
	t.Parallel()
	const home, other = "home", "other"
	url := ruledBy(t, "full")
	strategy, policy := rig.Shared(t, topology.Quorum), backoff.List{time.Second}
	r := rig.Start(t, rig.Config{URL: url, Queue: home, Strategy: strategy, Policy: policy, Handler: func(*message.Message) ([]*message.Message, error) {
		return nil, rig.ErrFailed
	}})
	_, sub := rig.OpenSubscriber(t, url, strategy, policy)
	require.NoError(t, sub.SubscribeInitialize(other))
	r.Publish(amqp.Publishing{Body: []byte("refused")})
	rig.WaitFor(t, "the message to wait", func() bool { return strings.Contains(r.Logs.Text(), "Message will be retried") })
	r.Stop()
	ch := testbroker.Channel(t, url)
	_, err := ch.QueueDelete(home, false, false, false)
	require.NoError(t, err)
	_, err = ch.QueueDeclare(home, true, false, false, false, amqp.Table{"x-max-length": int32(0), "x-overflow": "reject-publish"})
	require.NoError(t, err)
	require.NoError(t, ch.QueueBind(home, home, strategy.Prefix+".return", false, nil))
	var wrong rig.Timeline
	victim := rig.Start(t, rig.Config{
		URL: url, Queue: other, Strategy: strategy, Policy: policy,
		SubscriberOptions: []topology.SubscriberOption{topology.WithConsumerTimeout(4 * time.Second)}, // held for two
		Handler: func(*message.Message) ([]*message.Message, error) {
			wrong.Add()
			return nil, nil
		},
	})
	dead := rig.Take(t, url, other+".dlq")
	require.Equal(t, "refused", string(dead.Body))
	require.Equal(t, string(header.ReasonMisdirected), dead.Headers[header.DeadReason])
	require.Equal(t, home, dead.Headers[header.DeadQueue])
	require.Equal(t, "1", dead.Headers[header.DeadFailures])
	require.Len(t, victim.Logs.Saying("Message of another queue cannot be sent on, dead-lettering it"), 1)
	require.Zero(t, wrong.Count())
}

// With Via the queue gets its retry whatever the key is. A sibling, to which the
// key of the policy leads, took its copy for a message of its own.
func TestASiblingDropsTheCopyThatAPolicyBroughtIt(t *testing.T) {
	t.Parallel()
	url := ruledBy(t, "sibling")
	strategy, policy := rig.SharedVia(t, "events"), backoff.List{200 * time.Millisecond, 300 * time.Millisecond}
	serve := func(key string, handler message.HandlerFunc) *rig.Service {
		return rig.Start(t, rig.Config{URL: url, Strategy: strategy, Policy: policy, Configure: rig.OnTopic("events", key), Handler: handler})
	}
	var wrong rig.Timeline
	sibling := serve("mail.#", func(*message.Message) ([]*message.Message, error) {
		wrong.Add()
		return nil, nil
	})
	arrivals := make(chan rig.Arrival, 10)
	r := serve("order.#", func(msg *message.Message) ([]*message.Message, error) {
		raw, _ := topology.Received(msg.Context())
		arrivals <- rig.Arrival{Msg: msg, Attempt: middleware.Attempt(msg.Context()), Raw: raw}
		if middleware.Attempt(msg.Context()) < 3 {
			return nil, rig.ErrFailed
		}
		return nil, nil
	})
	rig.Publish(t, url, "events", "order.created", amqp.Publishing{})
	for attempt := range 3 {
		got := rig.Await(t, arrivals)
		require.Equal(t, attempt+1, got.Attempt)
		require.Equal(t, "order.created", got.Raw.RoutingKey)
	}
	rig.WaitFor(t, "the sibling to say it", func() bool {
		return len(sibling.Logs.Saying("A retry returned through the exchange with another routing key")) == 1
	})
	rig.WaitFor(t, "both queues to be empty", func() bool {
		return testbroker.Depth(t, url, sibling.Queue) == 0 && testbroker.Depth(t, url, r.Queue) == 0
	})
	r.Stop()
	sibling.Stop()
	require.Empty(t, arrivals)
	require.Zero(t, wrong.Count())
	require.Len(t, r.Logs.Saying("A retry returned through the exchange with another routing key"), 1)
	require.Zero(t, testbroker.Depth(t, url, sibling.Queue))
	require.Zero(t, testbroker.Depth(t, url, sibling.Queue+".dlq"))
}

// A policy with dead-letter-routing-key leads retries nowhere: they are stranded, and
// the log said nothing.
func TestRetriesThatAPolicyLeadsNowhereAreNamed(t *testing.T) {
	t.Parallel()
	const messages = 5
	url := ruledBy(t, "nowhere")
	for _, name := range []string{"shared quorum", "shared classic", "levels quorum"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			strategy := rig.Strategies[name](t)
			r := rig.Start(t, rig.Config{
				URL: url, Strategy: strategy, Policy: backoff.List{200 * time.Millisecond},
				ClientOptions: []topology.Option{topology.WithStrandedPause(100 * time.Millisecond)},
				Handler:       func(*message.Message) ([]*message.Message, error) { return nil, rig.ErrFailed },
			})
			for range messages {
				r.Publish(amqp.Publishing{})
			}
			stranded := r.Plan.Queues[len(r.Plan.Queues)-2].Name
			rig.WaitFor(t, "the log to say it", func() bool {
				lines := r.Logs.Saying("Messages are stranded")
				return len(lines) > 0 && strings.Contains(lines[len(lines)-1], fmt.Sprintf("messages:%d queue:%s", messages, stranded))
			})
			require.LessOrEqual(t, len(r.Logs.Saying("Messages are stranded")), messages, "only when there are more")
			require.Equal(t, r.Queue, rig.Take(t, url, stranded).Headers[header.Queue])
		})
	}
}
