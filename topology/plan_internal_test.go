package topology

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

// Only quorum queues sort waiting messages, and only above priority 4.
func TestWhereAPriorityIsLowered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		strategy Strategy
		lowered  bool
	}{
		"per queue":           {PerQueue{}, true},
		"per queue, classic":  {PerQueue{Type: Classic}, false},
		"per attempt":         {PerAttempt{}, true},
		"shared":              {Shared{}, true},
		"shared, classic":     {Shared{Type: Classic}, false},
		"levels":              {Levels{}, true},
		"levels, classic":     {Levels{Type: Classic}, false},
		"through an exchange": {PerQueue{Via: []string{"events"}}, true},
		"delayed exchange":    {DelayedExchange{}, false},
	} {
		plan, err := c.strategy.Plan("orders", nil)
		require.NoError(t, err, name)
		require.Equal(t, c.lowered, plan.toConsumer().SortsPriorities, name)
	}
}

// How long a message really waits, in all rounds together.
func TestPlanWaits(t *testing.T) {
	t.Parallel()
	const s, ms = time.Second, time.Millisecond
	steps := func(delays ...time.Duration) Strategy { return PerQueue{WaitSteps: delays} }
	via := PerQueue{Via: []string{"events"}, WaitSteps: []time.Duration{s}}
	for name, c := range map[string]struct {
		strategy    Strategy
		asked, want time.Duration
	}{
		"nothing":                             {steps(s), 0, 0},
		"nothing, through an exchange":        {via, 0, s},
		"negative":                            {steps(s), -s, s},
		"exact":                               {steps(s, 5*s), 5 * s, 5 * s},
		"the next longer":                     {steps(s, 5*s), 4 * s, 5 * s},
		"rounds of a shorter one":             {steps(s, 5*s), 2 * s, 2 * s},
		"rounds that fit":                     {steps(s, 5*s), 10 * s, 10 * s},
		"a last round that is longer":         {steps(s, 5*s), 12 * s, 15 * s},
		"a last round that fits":              {steps(s, 5*s), 11 * s, 11 * s},
		"no rest is left out":                 {steps(s), 2*s + ms, 3 * s},
		"nor a hundredth":                     {steps(s, 60*s), 6030 * s, 6060 * s},
		"ten years in seconds":                {steps(s), backoff.MaxDelay, backoff.MaxDelay},
		"levels":                              {Levels{}, 250 * ms, 300 * ms},
		"levels, up to a hundredth longer":    {Levels{}, 7 * time.Minute, 422400 * ms},
		"levels, a round and the rest":        {Levels{Max: 3 * s}, 3101 * ms, 3200 * ms},
		"levels, rounds of the longest alone": {Levels{Max: 3 * s}, 3200 * ms, 3200 * ms},
		"delayed exchange":                    {DelayedExchange{}, 2510 * ms, 2600 * ms},
		"delayed exchange, a round and more":  {DelayedExchange{}, 2 * maxDelayed, 2 * maxDelayed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := c.strategy.Plan("orders", nil)
			require.NoError(t, err)
			require.Equal(t, c.want.String(), plan.waits(c.asked).String())
		})
	}
	require.Equal(t, time.Minute, Plan{}.waits(time.Minute), "a plan without steps")
}

// The exchanges behind wait queues that leave the routing key to the message. A policy of the
// broker may change that key.
func TestExchangesThatKeepTheRoutingKey(t *testing.T) {
	t.Parallel()
	// A strategy of the user's own, whose wait queue sets the key.
	own := Plan{Queue: "orders", Queues: []Queue{WaitQueue("w", time.Second, Route{
		Exchange:   "back",
		RoutingKey: "fixed",
	})}}
	require.Empty(t, own.toConsumer().KeyKept)
	for name, c := range map[string]struct {
		strategy Strategy
		want     []string
	}{
		"per queue":  {PerQueue{}, nil},
		"perattempt": {PerAttempt{}, nil},
		"shared":     {Shared{}, []string{"millpond.return"}},
		"delayed":    {DelayedExchange{}, []string{"millpond.delayed"}},
		"with Via":   {Shared{Via: []string{"events"}}, []string{"millpond.via"}},
		"levels": {Levels{Max: 500 * time.Millisecond}, []string{
			"millpond.level.return",
			"millpond.level.0", "millpond.level.1", "millpond.level.2",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := c.strategy.Plan("orders", []time.Duration{5 * time.Second})
			require.NoError(t, err)
			require.Equal(t, c.want, plan.toConsumer().KeyKept)
		})
	}
}

func TestRemainingDelay(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 300_000_000, time.UTC)
	at := func(d time.Duration) string { return now.Add(d).Format(time.RFC3339) }
	for name, c := range map[string]struct {
		asked, until string
		want         time.Duration
		err          string
	}{
		"none": {},
		"just written": {
			asked: "3s", until: at(3 * time.Second),
			want: 3 * time.Second,
		},
		"a minute in an outbox": {
			asked: "3m", until: at(2 * time.Minute),
			want: 2*time.Minute + 700*time.Millisecond,
		},
		"too long in it": {
			asked: "3s", until: at(-time.Minute),
			want: -time.Minute + 700*time.Millisecond,
		},
		"a duration alone": {asked: "1h30m", want: 90 * time.Minute},
		"a time alone": {
			until: at(time.Minute),
			want:  time.Minute - 300*time.Millisecond,
		},
		"negative": {
			asked: "-3s", until: at(-3 * time.Second),
			want: -3 * time.Second,
		},
		"no duration": {
			asked: "soon",
			err:   `metadata "_watermill_delayed_for" is no duration`,
		},
		"no time": {
			until: "tomorrow",
			err:   `metadata "_watermill_delayed_until" is no time`,
		},
		"twenty years": {
			asked: "175200h", until: at(175200 * time.Hour),
			err: "is longer than",
		},
		"the clocks of two hosts disagree": {asked: "3s", until: at(time.Hour), want: 3 * time.Second},
		"a duration that does not fit":     {asked: "9999999h", err: "is no duration"},
		"a time that is no duration away":  {until: "9999-01-01T00:00:00Z", err: "is longer than"},
		"a time before there were any":     {until: "0001-01-01T00:00:00Z", want: -1 << 63},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			msg := message.NewMessage("id", nil)
			if c.asked != "" {
				msg.Metadata.Set(delay.DelayedForKey, c.asked)
			}
			if c.until != "" {
				msg.Metadata.Set(delay.DelayedUntilKey, c.until)
			}
			got, err := remainingDelay(msg, now)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

// Each setting alone is refused, by the Subscriber or the Publisher that would use it, and the
// error says nothing else.
func TestEachBadSettingIsRefusedAlone(t *testing.T) {
	t.Parallel()
	const consumer, publisher = 1, 2
	for name, c := range map[string]struct {
		refusedBy int
		set       func(*amqp.Config)
	}{
		"": {0, func(*amqp.Config) {}},
		"Marshaler is nil: use amqp.DefaultMarshaler{}": {
			consumer | publisher, func(c *amqp.Config) { c.Marshaler = nil },
		},
		"Exchange.GenerateName is nil: use one of watermill-amqp's constructors": {
			consumer | publisher, func(c *amqp.Config) { c.Exchange.GenerateName = nil },
		},
		"TopologyBuilder is nil: use &amqp.DefaultTopologyBuilder{}": {
			consumer | publisher, func(c *amqp.Config) { c.TopologyBuilder = nil },
		},
		"Connection.TLSConfig and Connection.AmqpConfig.TLSClientConfig are both set: set one": {
			consumer | publisher, func(c *amqp.Config) {
				c.Connection.TLSConfig = &tls.Config{}
				c.Connection.AmqpConfig = &amqp091.Config{TLSClientConfig: &tls.Config{}}
			},
		},
		"Consume.Qos.PrefetchCount is 0, which is no limit: set at least 1": {
			consumer, func(c *amqp.Config) { c.Consume.Qos.PrefetchCount = -1 },
		},
		"Consume.Qos.PrefetchCount is above 65535, which AMQP cannot ask for: set less": {
			consumer, func(c *amqp.Config) { c.Consume.Qos.PrefetchCount = 65536 },
		},
		"Publish.GenerateRoutingKey is nil: use one of watermill-amqp's constructors": {
			publisher, func(c *amqp.Config) { c.Publish.GenerateRoutingKey = nil },
		},
		"Publish.Immediate is refused by RabbitMQ: leave it false": {
			publisher, func(c *amqp.Config) { c.Publish.Immediate = true },
		},
		"Publish.Transactional would make confirms impossible: leave it false": {
			publisher, func(c *amqp.Config) { c.Publish.Transactional = true },
		},
	} {
		cfg := amqp.NewDurableQueueConfig("amqp://127.0.0.1/")
		c.set(&cfg)
		for by, err := range map[int]error{consumer: checkConsumer(cfg), publisher: checkPublisher(cfg)} {
			if c.refusedBy&by == 0 {
				require.NoError(t, err, name)
			} else {
				require.EqualError(t, err, name)
			}
		}
	}
}
