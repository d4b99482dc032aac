package e2e_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/passage"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// ways are the strategies of TestFiveDesignsOnEveryStrategy. "Via" brings messages back through an
// exchange. The type of the wait queues makes no difference to a design.
var ways = []string{
	"PerQueue quorum", "PerQueue classic", "PerAttempt quorum", "Shared classic", "Levels quorum",
	"PerQueue Via classic", "Shared Via quorum",
}

func strategyOf(t testing.TB, way string) topology.Strategy {
	t.Helper()
	words := strings.Fields(way)
	kind, prefix := topology.QueueType(words[len(words)-1]), ""
	var via []string
	if words[1] == "Via" {
		via, prefix = []string{rig.TopicExchange(t)}, testbroker.Queue(t)
	}
	switch words[0] {
	case "PerQueue":
		return topology.PerQueue{Type: kind, Via: via, Prefix: prefix}
	case "PerAttempt":
		return topology.PerAttempt{Type: kind}
	case "Shared":
		s := rig.Shared(t, kind)
		s.Via = via
		return s
	}
	return rig.Levels(t, kind)
}

// levelsOf are the wait queues of Levels that add up to a delay, in the order of a message.
var levelsOf = map[time.Duration]string{
	2 * time.Millisecond: "0", 20 * time.Millisecond: "0", 50 * time.Millisecond: "0",
	100 * time.Millisecond: "0", 120 * time.Millisecond: "1", 200 * time.Millisecond: "1",
	300 * time.Millisecond: "1 0", 400 * time.Millisecond: "2", 500 * time.Millisecond: "2 0",
	600 * time.Millisecond: "2 1", 800 * time.Millisecond: "3", time.Second: "3 1",
	1500 * time.Millisecond: "3 2 1 0", 2 * time.Second: "4 2", 5 * time.Second: "5 4 1",
	15 * time.Second: "7 4 2 1",
}

// waitNames returns the names of the wait queues that a message of a queue passes for each of these
// delays of one policy, as Timeline.Passed does.
func waitNames(strategy topology.Strategy, queue string, delays ...time.Duration) []string {
	names := make([]string, len(delays))
	for i, d := range delays {
		text := strings.TrimSuffix(d.String(), "0s")
		if !strings.HasSuffix(text, "m") {
			text = d.String()
		}
		switch s := strategy.(type) {
		case topology.PerQueue:
			names[i] = queue + ".wait." + text + suffixOf(s.Type, s.Via)
		case topology.PerAttempt:
			names[i] = fmt.Sprintf("%s.retry.%d.%s%s", queue, i+1, text, suffixOf(s.Type, nil))
		case topology.Shared:
			names[i] = s.Prefix + ".wait." + text + suffixOf(s.Type, s.Via)
		case topology.Levels:
			for level := range strings.FieldsSeq(levelsOf[d]) {
				names[i] += " " + s.Prefix + ".level." + level + suffixOf(s.Type, nil)
			}
			names[i] = strings.TrimSpace(names[i])
		}
	}
	return names
}

func suffixOf(kind topology.QueueType, via []string) (suffix string) {
	if kind == topology.Classic {
		suffix = ".classic"
	}
	if len(via) > 0 {
		suffix += ".via"
	}
	return suffix
}

const noneShared = "no wait queue is shared"

// designs are five retry designs of real services. cannot has words of the names of strategies that
// do not express the design, each with the reason.
var designs = []struct {
	name   string
	run    func(*testing.T, topology.Strategy)
	cannot map[string]string
}{
	{"outbox", outboxRow, map[string]string{"Via": "siblings on the exchange get each retry"}},
	{"goqueue", goqueueRow, nil},
	{"shared", sharedRow, map[string]string{"PerQueue": noneShared, "PerAttempt": noneShared}},
	{"adr", adrRow, nil},
	{"block", blockRow, map[string]string{"": "only the queue that failed gets the retry"}},
}

// whyNot returns why a strategy cannot express a design; "" if it can. The word "" stands for a
// strategy without Via.
func whyNot(cannot map[string]string, way string) string {
	words := strings.Fields(way)
	if words[1] != "Via" {
		words = append(words, "")
	}
	for _, word := range words {
		if reason := cannot[word]; reason != "" {
			return reason
		}
	}
	return ""
}

// Given five retry designs of real services, when each runs on every strategy that can express it,
// then each behaves as its service needs.
func TestFiveDesignsOnEveryStrategy(t *testing.T) {
	t.Parallel()
	for _, design := range designs {
		for _, way := range ways {
			if whyNot(design.cannot, way) != "" {
				continue
			}
			t.Run(design.name+"/"+way, func(t *testing.T) {
				t.Parallel()
				design.run(t, strategyOf(t, way))
			})
		}
	}
}

// outboxRow: given two queues on a topic exchange, when a message of one fails three times, then
// it comes back after 2 s, 5 s and 15 s, and the sibling sees it once. The waits are in full on
// quorum PerQueue, and ten times as fast otherwise.
func outboxRow(t *testing.T, strategy topology.Strategy) {
	delays := backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second}
	s, named := strategy.(topology.PerQueue)
	if named = named && s.Type != topology.Classic; named {
		s.WaitName = func(queue string, delay time.Duration) string {
			return fmt.Sprintf("%s.delay_%ds", queue, delay/time.Second)
		}
		strategy = s
	} else {
		for i := range delays {
			delays[i] /= 10
		}
	}
	url, exchange := testbroker.URL(t), testbroker.Queue(t)
	sibling := rig.BesideOn(t, url, exchange, "order.#")
	var calls rig.Timeline
	var rounds passage.Rounds
	keys := make(chan string, 10)
	r := rig.Start(t, rig.Config{
		URL: url, Strategy: strategy, Policy: delays, Configure: rig.OnTopic(exchange, "order.#"),
		Rounds: &rounds,
		Handle: func(msg *message.Message) error {
			key := middleware.StateOf(msg.Context()).OriginRoutingKey
			keys <- key
			if calls.Record(msg) < 4 {
				return rig.ErrFailed
			}
			return nil
		},
	})
	rig.Publish(t, url, exchange, "order.created.eu", rig.Message("order 1"))
	names := waitNames(strategy, r.Queue, delays...)
	if named {
		names = []string{r.Queue + ".delay_2s", r.Queue + ".delay_5s", r.Queue + ".delay_15s"}
		require.Equal(t, append(slices.Clone(names), r.Queue+".dlq"), rig.QueueNames(r.Plan))
	}
	calls.AwaitPassed(t, names...)
	calls.RequireNotEarly(t, delays...)
	require.Zero(t, rounds.Of(""))
	for range 4 {
		require.Equal(t, "order.created.eu", <-keys)
	}
	r.RequireNothingLeft(0)
	require.Equal(t, 1, testbroker.Depth(t, url, sibling), "only the queue that failed sees the retry")
}

// sharedRow: given two queues with policies of their own on one set of wait queues, when marked
// errors pass the limit, then the messages reach the dead-letter exchange. Only errors marked
// retryable are retried. The delays 1/10/100/500/500 s are 500 times as fast.
func sharedRow(t *testing.T, strategy topology.Strategy) {
	url := testbroker.URL(t)
	dlx := testbroker.Queue(t) + ".dlx"
	graveyard := rig.BesideOn(t, url, dlx, "dead.#")
	target := func(queue string) topology.Route {
		return topology.Route{Exchange: dlx, RoutingKey: "dead." + queue}
	}
	switch s := strategy.(type) {
	case topology.Shared:
		s.Dead.Target = target
		strategy = s
	case topology.Levels:
		s.Dead.Target = target
		strategy = s
	}
	const ms = time.Millisecond
	long := backoff.Exponential{Initial: 2 * ms, Factor: 10, Max: time.Second, Retries: 5}
	short := backoff.List{200 * ms, time.Second}
	first, err := topology.PlanFor(strategy, "a", long)
	require.NoError(t, err)
	second, err := topology.PlanFor(strategy, "b", short)
	require.NoError(t, err)
	require.Subset(t, rig.QueueNames(first), rig.QueueNames(second), "a queue needs only its policy")

	var longCalls, shortCalls, unmarked rig.Timeline
	var rounds passage.Rounds
	serve := func(policy backoff.Policy, calls *rig.Timeline) *rig.Service {
		return rig.Start(t, rig.Config{
			URL: url, Strategy: strategy, Policy: policy, Rounds: &rounds,
			RetryOptions: []middleware.Option{middleware.WithDefaultClass(header.ClassPermanent)},
			Handle: func(msg *message.Message) error {
				if string(msg.Payload) == "unmarked" {
					unmarked.Add()
					return rig.ErrFailed
				}
				calls.Record(msg)
				return fmt.Errorf("try again: %w", middleware.Retryable(rig.ErrFailed))
			},
		})
	}
	a, b := serve(long, &longCalls), serve(short, &shortCalls)
	a.Send("long")
	b.Send("short", "unmarked")

	reasons := map[string]any{}
	for range 3 {
		d := rig.Take(t, url, graveyard)
		reasons[string(d.Body)] = d.Headers[header.DeadReason]
		if string(d.Body) == "long" {
			require.Equal(t, "dead."+a.Queue, d.RoutingKey)
		}
	}
	want := map[string]any{"long": "exhausted", "short": "exhausted", "unmarked": "permanent"}
	require.Equal(t, want, reasons)
	for calls, delays := range map[*rig.Timeline][]time.Duration{
		&longCalls: {2 * ms, 20 * ms, 200 * ms, time.Second, time.Second}, &shortCalls: short,
	} {
		calls.AwaitPassed(t, waitNames(strategy, "", delays...)...)
		calls.RequireNotEarly(t, delays...)
	}
	require.Zero(t, rounds.Of(""))
	require.Equal(t, 1, unmarked.Count())
}

// adrRow: given classified errors and bounded retries, when messages fail, then their dead letters
// have ids, count and reason. When the broker is cut off, the failed message is
// held and later retried. The producer is a plain AMQP client with ids in the properties.
func adrRow(t *testing.T, strategy topology.Strategy) {
	url := testbroker.URL(t)
	proxy := testbroker.NewProxy(t, url)
	errInvalid := errors.New("no such customer")
	classify := middleware.WithClassifier(middleware.PermanentErrors(errInvalid))
	calls := map[string]*rig.Timeline{"invalid": {}, "hopeless": {}, "held": {}}
	delays := backoff.List{100 * time.Millisecond, 300 * time.Millisecond}
	var rounds passage.Rounds
	r := rig.Start(t, rig.Config{
		URL: url, PublisherURL: proxy.URL(), Strategy: strategy, Configure: rig.QuorumQueue,
		Policy: delays, Rounds: &rounds,
		RetryOptions:  []middleware.Option{classify},
		ClientOptions: []topology.Option{topology.WithConfirmTimeout(2 * time.Second)},
		Handle: func(msg *message.Message) error {
			raw, _ := topology.Received(msg.Context())
			n := calls[raw.MessageId].Record(msg)
			switch {
			case raw.MessageId == "invalid":
				return fmt.Errorf("order without a customer: %w", errInvalid)
			case raw.MessageId == "held" && n == 1:
				proxy.Blackhole(true) // this failure cannot be handed over
			case raw.MessageId == "held" && n == 3:
				return nil
			}
			return rig.ErrFailed
		},
	})
	send := func(id string) {
		msg := rig.Message("order " + id)
		msg.MessageId, msg.CorrelationId = id, "corr-"+id
		r.Publish(msg)
	}
	send("invalid")
	send("hopeless")
	dead := map[string]amqp.Delivery{}
	for range 2 {
		d := r.DeadLetter()
		dead[d.MessageId] = d
	}
	for id, want := range map[string]struct{ reason, class, failures, text string }{
		"invalid":  {"permanent", "permanent", "1", "order without a customer: no such customer"},
		"hopeless": {"exhausted", "retryable", "3", rig.ErrFailed.Error()},
	} {
		d := dead[id]
		require.Equal(t, "corr-"+id, d.CorrelationId)
		require.Equal(t, "order "+id, string(d.Body))
		rig.RequireDead(t, d, want.reason, want.failures)
		require.Equal(t, want.text, d.Headers[header.DeadError])
		require.Equal(t, want.class, d.Headers[header.DeadClass])
	}

	send("held")
	rig.WaitFor(t, "the message to be held", func() bool { return len(r.Logs.About("held")) > 0 })
	require.Equal(t, "Failed message cannot be handed over, holding it", r.Logs.About("held")[0].Msg)
	require.Equal(t, 0, r.Depth(".dlq"))
	proxy.Blackhole(false)
	calls["invalid"].RequireNotEarly(t)
	for _, id := range []string{"hopeless", "held"} {
		calls[id].AwaitPassed(t, waitNames(strategy, r.Queue, delays...)...)
		calls[id].RequireNotEarly(t, delays...)
	}
	require.Zero(t, rounds.Of(""))

	require.NotContains(t, r.Logs.Text(), "order hopeless", "no payload is logged")
}

// blockRow: given queues on one exchange and five delays (5 s to 2 days, here much faster), when a
// message fails, then it comes back through the exchange with its routing key. Its dead letter has
// its first exchange, key and queue.
func blockRow(t *testing.T, strategy topology.Strategy) {
	const ms = time.Millisecond
	delays := backoff.List{50 * ms, 120 * ms, 300 * ms, 600 * ms, time.Second}
	const key = "order.created.eu"
	url := testbroker.URL(t)
	plan, err := topology.PlanFor(strategy, "any", delays)
	require.NoError(t, err)
	exchange := plan.Via.Exchanges[0]
	sibling := rig.BesideOn(t, url, exchange, "order.#")

	type call struct {
		exchange, key, originExchange, originKey string
		attempt                                  int
	}
	var times rig.Timeline
	var rounds passage.Rounds
	var calls []call
	r := rig.Start(t, rig.Config{
		URL: url, Strategy: strategy, Policy: delays, Rounds: &rounds,
		Configure: func(cfg *wamqp.Config) {
			rig.OnTopic(exchange, "order.#")(cfg)
			rig.Picky(cfg)
		},
		Handle: func(msg *message.Message) error {
			raw, _ := topology.Received(msg.Context())
			state := middleware.StateOf(msg.Context())
			exchange, key := state.OriginExchange, state.OriginRoutingKey
			attempt := middleware.Attempt(msg.Context())
			calls = append(calls, call{raw.Exchange, raw.RoutingKey, exchange, key, attempt})
			if times.Record(msg) < 6 {
				return rig.ErrFailed
			}
			return nil
		},
	})
	other := rig.Start(t, rig.Config{
		URL: url, Strategy: strategy, Policy: delays, Configure: rig.OnTopic(exchange, "invoice.#"),
		Handle: rig.Succeed,
	})
	back := r.Plan.Via.Through
	if _, shared := strategy.(topology.Shared); shared {
		first, second := r.Plan.WaitSteps[0], other.Plan.WaitSteps[0]
		require.Equal(t, first.Exchange, second.Exchange, "one block for many queues")
	}
	send := func(body string) { rig.Publish(t, url, exchange, key, rig.Message(body)) }

	send("order 1")
	times.AwaitPassed(t, waitNames(strategy, r.Queue, delays...)...)
	times.RequireGaps(t, r.Plan, delays...)
	require.Zero(t, rounds.Of(""))
	for i, c := range calls {
		by := exchange
		if i > 0 {
			by = back
		}
		require.Equal(t, call{by, key, exchange, key, i + 1}, c)
	}
	for range 6 { // the fan-out that the option warns of
		copied := rig.Take(t, url, sibling)
		require.Equal(t, "order 1", string(copied.Body))
		require.Equal(t, key, copied.RoutingKey)
	}
	require.Contains(t, r.Logs.Text(), "bound there")
	require.Equal(t, 0, other.Depth(".dlq"))

	send("refuse") // the marshaler refuses it
	dead := r.DeadLetter()
	require.Equal(t, exchange, dead.Headers[keys.OriginExchange])
	require.Equal(t, key, dead.Headers[keys.OriginRoutingKey])
	require.Equal(t, r.Queue, dead.Headers[header.DeadQueue])
}
