package topology

import (
	"context"
	"encoding/json"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// The limits that were measured (F30), one less than the deliveries.
func TestDeliveryLimitOfArgumentAndPolicies(t *testing.T) {
	t.Parallel()
	old, current := brokerVersion{3, 10}, brokerVersion{4, 0}
	number := func(text string) any { return json.Number(text) }
	for name, c := range map[string]struct {
		version          brokerVersion
		argument, policy any
		want             int
	}{
		"3.10, nothing":               {old, nil, nil, noLimit},
		"3.10, policy":                {old, nil, number("30"), 30},
		"3.10, negative argument":     {old, int64(-1), nil, 0},
		"3.10, negative and policy":   {old, int64(-1), number("30"), 0},
		"3.10, the smaller":           {old, int64(8), number("30"), 8},
		"nothing":                     {current, nil, nil, 20},
		"policy of none":              {current, nil, number("-1"), noLimit},
		"policy of zero":              {current, nil, number("0"), 0},
		"policy that raises":          {current, nil, number("30"), 30},
		"policy that raises, by much": {current, nil, number("1099511627776"), noLimit},
		"policy that lowers":          {current, int32(30), number("3"), 3},
		"argument that is smaller":    {current, int64(8), number("30"), 8},
		"argument, policy of none":    {current, int64(30), number("-1"), 30},
		"argument of none, policy":    {current, int64(-1), number("3"), 3},
		"argument of none":            {current, int64(-1), nil, noLimit},
		"argument of zero":            {current, int64(0), number("30"), 0},
		"large argument":              {current, int64(deliveryLimit), nil, noLimit},
		"large argument, policy":      {current, int64(deliveryLimit), number("3"), 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &queueFacts{kind: Quorum, known: true, arguments: amqp.Table{}, policy: map[string]any{}, version: c.version}
			if c.argument != nil {
				f.arguments["x-delivery-limit"] = c.argument
			}
			if c.policy != nil {
				f.policy["delivery-limit"] = c.policy
			}
			limit, certain := f.deliveryLimit()
			require.Equal(t, c.want, limit)
			require.True(t, certain)
			f.policy = nil
			_, certain = f.deliveryLimit()
			require.False(t, certain, "a policy may say otherwise")
			f.kind = Classic
			limit, certain = f.deliveryLimit()
			require.Equal(t, noLimit, limit, "classic queues count nothing")
			require.True(t, certain)
		})
	}
}

// Between the questions the queue may vanish: none of them creates it, and what it
// was with is found out argument by argument.
func TestAskingWhatAQueueIsCreatesNone(t *testing.T) {
	t.Parallel()
	conn := testbroker.Dial(t, testbroker.URL(t))
	run := func(_ context.Context, f func(*amqp.Channel) error) error {
		ch, err := conn.Channel()
		require.NoError(t, err)
		defer func() { _ = ch.Close() }()
		return f(ch)
	}
	queue := testbroker.Queue(t)
	for _, kind := range []QueueType{Classic, Quorum, "none"} {
		f := &queueFacts{kind: kind, arguments: amqp.Table{"x-message-ttl": int64(1000)}}
		require.NoError(t, f.learnArguments(t.Context(), run, queue))
		require.False(t, f.known)
		_, err := passive(t.Context(), run, queue)
		require.True(t, isCode(err, amqp.NotFound), "%v", err)
	}
	_, err := kindOf(t.Context(), run, queue)
	require.True(t, isCode(err, amqp.NotFound), "%v", err)

	args := amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(8), "x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": "it's 'x'",
		"x-overflow": "drop-head", "x-single-active-consumer": true, "x-message-ttl": int64(100000), "x-quorum-initial-group-size": int64(1),
	}
	require.NoError(t, run(t.Context(), func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, args)
		return err
	}))
	for name, configured := range map[string]amqp.Table{
		"nothing is known": nil,
		"another is meant": {"x-delivery-limit": int32(20), "x-max-length": int64(5), "x-overflow": "reject-publish", "x-message-ttl": "1"},
		"the same":         args,
	} {
		f, err := learn(t.Context(), run, queue, configured, brokerVersion{4, 0}, nil)
		require.NoError(t, err, name)
		require.Equal(t, Quorum, f.kind, name)
		require.True(t, f.known, name)
		require.True(t, f.deadLetters, name)
		delete(f.arguments, "x-message-ttl") // a text where a text was meant
		want := amqp.Table{}
		for key, value := range args {
			if key != "x-message-ttl" {
				want[key] = value
			}
		}
		limit, _ := f.deliveryLimit()
		require.Equal(t, 8, limit, name)
		require.Equal(t, want["x-dead-letter-routing-key"], f.arguments["x-dead-letter-routing-key"], name)
		require.Equal(t, len(want), len(f.arguments), "%s: %v", name, f.arguments)
	}
}
