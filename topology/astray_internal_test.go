package topology

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// Whether the routing key of a delivery was changed while its message waited.
func TestChangedKey(t *testing.T) {
	t.Parallel()
	death := func(keys ...any) amqp.Table { return amqp.Table{"queue": "w", "routing-keys": keys} }
	planOf := func(strategy Strategy) Plan {
		plan, err := strategy.Plan("orders", []time.Duration{5 * time.Second})
		require.NoError(t, err)
		return plan
	}
	// A strategy of the user's own, whose wait queue sets the key.
	own := Plan{Queue: "orders", Queues: []Queue{WaitQueue("w", time.Second, Route{Exchange: "back", RoutingKey: "fixed"})}}
	for name, c := range map[string]struct {
		plan          Plan
		exchange, key string
		deaths        any
		before        string
		changed       bool
	}{
		"the key of another queue":           {plan: planOf(Shared{}), exchange: "millpond.return", key: "orders", deaths: []any{death("mail")}, before: "mail", changed: true},
		"its own":                            {plan: planOf(Shared{}), exchange: "millpond.return", key: "orders", deaths: []any{death("orders")}, before: "orders"},
		"another exchange":                   {plan: planOf(Shared{}), exchange: "events", key: "orders", deaths: []any{death("mail")}},
		"the default exchange":               {plan: planOf(PerQueue{}), key: "orders", deaths: []any{death("orders.wait.5s")}},
		"levels, the first of three hops":    {plan: planOf(Levels{}), exchange: "millpond.level.return", key: "orders", deaths: []any{death("orders"), death("orders"), death("1.1.1.mail")}, before: "1.1.1.mail", changed: true},
		"levels, by the exchange of one":     {plan: planOf(Levels{}), exchange: "millpond.level.3", key: "0.orders", deaths: []any{death("1.mail")}, before: "1.mail", changed: true},
		"with Via":                           {plan: planOf(Shared{Via: "events"}), exchange: "millpond.return.events", key: "a", deaths: []any{death("b")}, before: "b", changed: true},
		"a wait queue that sets the key":     {plan: own, exchange: "back", key: "fixed", deaths: []any{death("w")}},
		"no x-death":                         {plan: planOf(Shared{}), exchange: "millpond.return", key: "orders"},
		"an x-death that is no list":         {plan: planOf(Shared{}), exchange: "millpond.return", key: "orders", deaths: "mail"},
		"an empty list":                      {plan: planOf(Shared{}), exchange: "millpond.return", key: "orders", deaths: []any{}},
		"a list of something else":           {plan: planOf(Shared{}), exchange: "millpond.return", key: "orders", deaths: []any{"mail"}},
		"no routing keys":                    {plan: planOf(Shared{}), exchange: "millpond.return", key: "orders", deaths: []any{amqp.Table{}}},
		"a routing key that is not a string": {plan: planOf(Shared{}), exchange: "millpond.return", key: "orders", deaths: []any{death(int32(1))}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw := amqp.Delivery{Exchange: c.exchange, RoutingKey: c.key, Headers: amqp.Table{"x-death": c.deaths}}
			before, changed := c.plan.changedKey(&raw)
			require.Equal(t, c.before, before)
			require.Equal(t, c.changed, changed)
		})
	}
}
