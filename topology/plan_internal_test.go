package topology

import (
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/ladder"
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
		plan, err := c.strategy.Plan("orders", nil)
		require.NoError(t, err, name)
		require.Equal(t, c.want.String(), plan.waits(c.asked).String(), name)
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
		plan, err := c.strategy.Plan("orders", []time.Duration{5 * time.Second})
		require.NoError(t, err, name)
		require.Equal(t, c.want, plan.toConsumer().KeyKept, name)
	}
}

func TestRemainingDelay(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 300_000_000, time.UTC)
	at := func(d time.Duration) string { return now.Add(d).Format(time.RFC3339) }
	const m, ms = time.Minute, time.Millisecond
	for name, c := range map[string]struct {
		asked, until string
		want         time.Duration
		err          string
	}{
		"none":                             {},
		"just written":                     {"3s", at(3 * time.Second), 3 * time.Second, ""},
		"a minute in an outbox":            {"3m", at(2 * m), 2*m + 700*ms, ""},
		"too long in it":                   {"3s", at(-m), -m + 700*ms, ""},
		"a duration alone":                 {"1h30m", "", 90 * m, ""},
		"a time alone":                     {"", at(m), m - 300*ms, ""},
		"negative":                         {"-3s", at(-3 * time.Second), -3 * time.Second, ""},
		"no duration":                      {"soon", "", 0, `"_watermill_delayed_for" is no duration`},
		"no time":                          {"", "tomorrow", 0, `"_watermill_delayed_until" is no time`},
		"twenty years":                     {"175200h", at(175200 * time.Hour), 0, "is longer than"},
		"the clocks of two hosts disagree": {"3s", at(time.Hour), 3 * time.Second, ""},
		"a duration that does not fit":     {"9999999h", "", 0, "is no duration"},
		"a time that is no duration away":  {"", "9999-01-01T00:00:00Z", 0, "is longer than"},
		"a time before there were any":     {"", "0001-01-01T00:00:00Z", -1 << 63, ""},
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

// FuzzRoundsOfEveryStrategy follows a delay from a second to a week through all its rounds. A
// message is never early. It is late by at most a quarter of the delay, or by a second or the
// shortest step of a second or more. The exceptions are the delays that Subscribe logs. A delay
// of the policy takes one round, and is exact.
func FuzzRoundsOfEveryStrategy(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		delays := []time.Duration(nil) // unknown
		if r.IntN(4) > 0 {
			for range 1 + r.IntN(6) {
				delays = append(delays, anyDelay(r, 24*time.Hour))
			}
		}
		asked := anyDelay(r, 7*24*time.Hour)
		for _, strategy := range []Strategy{
			PerQueue{},
			PerQueue{Type: Classic},
			PerQueue{Via: []string{"events"}},
			PerAttempt{},
			PerAttempt{Delays: []time.Duration{time.Second, time.Second}},
			Shared{},
			Shared{Via: []string{"events"}},
			Levels{},
			Levels{Max: time.Hour},
		} {
			plan, err := strategy.Plan("orders", delays)
			require.NoError(t, err)
			waits, rounds, hops := followRounds(t, plan, asked)
			require.GreaterOrEqual(t, waits, asked, "%#v: %v of %v", strategy, asked, delays)
			if plan.Levels != nil {
				require.LessOrEqual(t, waits-asked, max(plan.Levels.Resolution, asked/100), "%#v: %v", strategy,
					asked)
				require.LessOrEqual(t, hops, rounds*plan.Levels.Levels)
				continue
			}
			require.Equal(t, waits, plan.waits(asked), "%#v: %v of %v", strategy, asked, delays)
			require.Equal(t, rounds, hops)
			longest := plan.WaitSteps[len(plan.WaitSteps)-1].Delay
			require.LessOrEqual(t, rounds, int(asked/longest)+ladder.MostRounds, "%#v: %v of %v", strategy,
				asked, delays)
			if len(plan.gaps()) == 0 {
				late := max(time.Second, asked/4, firstFrom(plan.steps(), time.Second))
				require.LessOrEqual(t, waits-asked, late, "%#v: %v of %v", strategy, asked, delays)
			}
			if delays == nil {
				require.LessOrEqual(t, waits-asked, max(time.Second, asked/4), "%#v: %v", strategy, asked)
			}
			for _, listed := range delays {
				route, err := plan.Route(Retry{Delay: listed, Attempt: 1})
				require.NoError(t, err)
				require.Equal(t, listed, route.Delay, "%#v", strategy)
				require.Equal(t, listed, plan.waits(listed), "%#v", strategy)
			}
		}
	})
}

// followRounds asks the plan as the Subscriber does, once for each round.
func followRounds(
	t *testing.T, plan Plan, asked time.Duration,
) (waits time.Duration, rounds, hops int) {
	t.Helper()
	for waits < asked {
		route, err := plan.Route(Retry{Delay: asked - waits, Asked: asked, Attempt: 1})
		require.NoError(t, err)
		waits, rounds, hops = waits+route.Delay, rounds+1, hops+route.Hops
	}
	return waits, rounds, hops
}

// Given a Client whose Subscribers need more than 200 queues, then one line says so.
func TestManyQueuesAreNamedOnce(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	c := &Client{planned: map[string]bool{}, opts: clientOptions{logger: logger}}
	policy := backoff.List{time.Second, 5 * time.Second, 30 * time.Second}
	for n := range 60 { // four queues each
		plan, err := PlanFor(PerQueue{}, fmt.Sprint("orders-", n), policy)
		require.NoError(t, err)
		c.countQueues(plan)
		require.Equal(t, 4*(n+1) > 200, len(logger.Captured()[watermill.ErrorLogLevel]) == 1)
	}
}

// anyDelay returns a delay of at least a second in whole milliseconds. Short ones are as likely as
// long ones.
func anyDelay(r *rand.Rand, longest time.Duration) time.Duration {
	d := time.Second
	for d < longest/2 && r.IntN(8) > 0 {
		d *= 2
	}
	return (d + time.Duration(r.Int64N(int64(d)))).Truncate(time.Millisecond)
}

// firstFrom returns the first step that is not shorter than least.
func firstFrom(steps []time.Duration, least time.Duration) time.Duration {
	for _, step := range steps {
		if step >= least {
			return step
		}
	}
	return 0
}
