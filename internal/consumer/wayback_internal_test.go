package consumer

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// Whether the routing key of a delivery was changed while its message waited. Which exchanges
// of a plan keep the key is tested in topology.
func TestChangedKey(t *testing.T) {
	t.Parallel()
	death := func(keys ...any) amqp.Table { return amqp.Table{"queue": "w", "routing-keys": keys} }
	shared := []string{"millpond.return"}
	levels := []string{"millpond.level.return", "millpond.level.3"}
	for name, c := range map[string]struct {
		kept          []string
		exchange, key string
		deaths        any
		before        string
		changed       bool
	}{
		"the key of another queue": {
			kept: shared, exchange: "millpond.return", key: "orders",
			deaths: []any{death("mail")}, before: "mail", changed: true,
		},
		"its own": {
			kept: shared, exchange: "millpond.return", key: "orders",
			deaths: []any{death("orders")}, before: "orders",
		},
		"another exchange": {
			kept: shared, exchange: "events", key: "orders",
			deaths: []any{death("mail")},
		},
		"the default exchange": {key: "orders", deaths: []any{death("orders.wait.5s")}},
		"levels, the first of three hops": {
			kept: levels, exchange: "millpond.level.return",
			key: "orders", deaths: []any{death("orders"), death("orders"), death("1.1.1.mail")},
			before: "1.1.1.mail", changed: true,
		},
		"levels, by the exchange of one": {
			kept: levels, exchange: "millpond.level.3",
			key: "0.orders", deaths: []any{death("1.mail")}, before: "1.mail", changed: true,
		},
		"with Via": {
			kept:     []string{"millpond.return.events"},
			exchange: "millpond.return.events", key: "a", deaths: []any{death("b")}, before: "b",
			changed: true,
		},
		"an older level with Via": {
			kept: []string{"millpond.via"}, exchange: "millpond.level.0.via", key: "a",
			deaths: []any{death("b")}, before: "b", changed: true,
		},
		"a wait queue that sets the key": {exchange: "back", key: "fixed", deaths: []any{death("w")}},
		"no x-death":                     {kept: shared, exchange: "millpond.return", key: "orders"},
		"an x-death that is no list": {
			kept: shared, exchange: "millpond.return", key: "orders",
			deaths: "mail",
		},
		"an empty list": {
			kept: shared, exchange: "millpond.return", key: "orders",
			deaths: []any{},
		},
		"a list of something else": {
			kept: shared, exchange: "millpond.return", key: "orders",
			deaths: []any{"mail"},
		},
		"no routing keys": {
			kept: shared, exchange: "millpond.return", key: "orders",
			deaths: []any{amqp.Table{}},
		},
		"a routing key that is not a string": {
			kept: shared, exchange: "millpond.return", key: "orders",
			deaths: []any{death(int32(1))},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw := amqp.Delivery{
				Exchange: c.exchange, RoutingKey: c.key,
				Headers: amqp.Table{"x-death": c.deaths},
			}
			s := &Subscription{cfg: Config{Waits: Waits{KeyKept: c.kept, Via: Via{Through: c.kept}}}}
			before, changed := s.changedKey(&raw)
			require.Equal(t, c.before, before)
			require.Equal(t, c.changed, changed)
		})
	}
}

// Which exchange of the user brought a delivery. A header counts only on a delivery of a wait
// queue, and only where it names an exchange of the plan.
func TestTheExchangeThatBroughtAMessage(t *testing.T) {
	t.Parallel()
	via := Via{
		Exchanges: []string{"events", "a b", "50%"}, Through: []string{"millpond.via", "level.0"},
		Older: map[string]string{"millpond.return.events": "events"},
	}
	for name, c := range map[string]struct {
		exchange   string
		header     any
		by, before string
	}{
		"at first":                {"events", nil, "events", ""},
		"at first, forged":        {"events", "through a%20b orders", "events", ""},
		"another exchange":        {"logs", "through events orders", "", ""},
		"the default exchange":    {"", "through events orders", "", ""},
		"back":                    {"millpond.via", ViaHeader("orders", "events"), "events", "through"},
		"back by a level":         {"level.0", "kept events", "events", "kept"},
		"names with spaces":       {"millpond.via", ViaHeader("my orders", "a b"), "a b", "through"},
		"a percent sign":          {"millpond.via", ViaHeader("orders", "50%"), "50%", "through"},
		"an exchange of no plan":  {"millpond.via", "through logs orders", "", ""},
		"a bad escape":            {"millpond.via", "through %zz orders", "", ""},
		"an older header":         {"millpond.via", "through orders", "", ""},
		"older":                   {"millpond.return.events", "through orders", "events", "through"},
		"an older level":          {"millpond.level.2.50ms.via", "owed events", "events", "owed"},
		"a level without Via":     {"millpond.level.2", "owed events", "", ""},
		"an older level's prefix": {"shop.level.2.via", "owed events", "", ""},
		"older, owed":             {"millpond.return.events", "owed", "events", "owed"},
		"no header":               {"millpond.via", nil, "", ""},
		"no text":                 {"millpond.via", int32(1), "", ""},
	} {
		by, before := via.brought(c.exchange, amqp.Table{"millpond-return": c.header})
		require.Equal(t, c.by+", "+c.before, by+", "+before, name)
	}
	require.NotEqual(t, ViaHeader("a b", "c"), ViaHeader("b", "c a"))
	require.NotEqual(t, ViaHeader("b c", "a"), ViaHeader("c", "a b"))
}
