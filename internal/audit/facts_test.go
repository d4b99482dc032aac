package audit_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/audit"
)

var (
	old    = audit.Version{Major: 3, Minor: 10}
	four   = audit.Version{Major: 4}
	latest = audit.Version{Major: 4, Minor: 3}
)

// The limits that were measured (F30), one less than the deliveries.
func TestDeliveryLimitOfArgumentAndPolicies(t *testing.T) {
	t.Parallel()
	number := func(text string) any { return json.Number(text) }
	for name, c := range map[string]struct {
		version          audit.Version
		argument, policy any
		want             int
	}{
		"3.10, nothing":               {old, nil, nil, audit.NoLimit},
		"3.10, policy":                {old, nil, number("30"), 30},
		"3.10, negative argument":     {old, int64(-1), nil, 0},
		"3.10, negative and policy":   {old, int64(-1), number("30"), 0},
		"3.10, the smaller":           {old, int64(8), number("30"), 8},
		"nothing":                     {four, nil, nil, 20},
		"policy of none":              {four, nil, number("-1"), audit.NoLimit},
		"policy of zero":              {four, nil, number("0"), 0},
		"policy that raises":          {four, nil, number("30"), 30},
		"policy that raises, by much": {four, nil, number("1099511627776"), audit.NoLimit},
		"policy that lowers":          {four, int32(30), number("3"), 3},
		"argument that is smaller":    {four, int64(8), number("30"), 8},
		"argument, policy of none":    {four, int64(30), number("-1"), 30},
		"argument of none, policy":    {four, int64(-1), number("3"), 3},
		"argument of none":            {four, int64(-1), nil, audit.NoLimit},
		"argument of zero":            {four, int64(0), number("30"), 0},
		"large argument":              {four, int64(2147483647), nil, audit.NoLimit},
		"large argument, policy":      {four, int64(2147483647), number("3"), 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &audit.Facts{
				Kind: audit.Quorum, Known: true, Version: c.version,
				Arguments: amqp.Table{}, Policy: map[string]any{},
			}
			if c.argument != nil {
				f.Arguments["x-delivery-limit"] = c.argument
			}
			if c.policy != nil {
				f.Policy["delivery-limit"] = c.policy
			}
			limit, certain := f.DeliveryLimit()
			require.Equal(t, c.want, limit)
			require.True(t, certain)
			f.Policy = nil
			_, certain = f.DeliveryLimit()
			require.False(t, certain, "a policy may say otherwise")
			f.Kind = audit.Classic
			limit, certain = f.DeliveryLimit()
			require.Equal(t, audit.NoLimit, limit, "classic queues count nothing")
			require.True(t, certain)
		})
	}
}

func TestHoldEndsBeforeTheConsumerTimeout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ timeout, confirm, want time.Duration }{
		{30 * time.Minute, 10 * time.Second, 28*time.Minute + 30*time.Second},
		{5 * time.Minute, 10 * time.Second, 4 * time.Minute},
		{10 * time.Second, 10 * time.Second, 5 * time.Second}, // no room for three tries
		{audit.MaxHold, 10 * time.Second, audit.MaxHold - 90*time.Second},
	} {
		require.Equal(t, c.want, audit.HoldFor(c.timeout, c.confirm), "%v", c.timeout)
	}
}

func TestConsumerTimeoutThatIsKnown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		version                audit.Version
		queue, policy, consume any
		option, want           time.Duration
	}{
		"nothing":              {version: latest, want: 30 * time.Minute},
		"of the queue":         {version: four, queue: int64(60_000), want: time.Minute},
		"of the queue, longer": {version: four, queue: int64(7_200_000), want: 2 * time.Hour},
		"of the queue, 3.10":   {version: old, queue: int64(60_000), want: 30 * time.Minute},
		"of a policy":          {version: four, policy: int64(60_000), want: time.Minute},
		"of the consumer":      {version: latest, consume: int32(30_000), want: 30 * time.Second},
		"of the consumer, 4.0": {version: four, consume: int32(30_000), want: 30 * time.Minute},
		"several: the shortest": {
			version: latest, queue: int64(60_000), policy: int64(50_000), consume: 90_000,
			want: 50 * time.Second,
		},
		"no number": {version: latest, queue: "60000", consume: -1, want: 30 * time.Minute},
		"the option before the rest": {
			version: latest, queue: int64(60_000), option: 2 * time.Hour, want: 2 * time.Hour,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &audit.Facts{
				Version: c.version, Arguments: amqp.Table{"x-consumer-timeout": c.queue},
				Policy: map[string]any{"consumer-timeout": c.policy},
			}
			consume := amqp.Table{"x-consumer-timeout": c.consume}
			require.Equal(t, c.want, f.ConsumerTimeout(c.option, consume))
		})
	}
}

// A queue that must hold rejected messages for 1 s to 1 min. The facts about argument and policy
// are F14.
func TestAQueueThatHoldsRejectedMessages(t *testing.T) {
	t.Parallel()
	plan := audit.Plan{
		Queue: "orders", DeadKey: "orders.dlq", RejectMin: time.Second, RejectMax: time.Minute,
	}
	type set map[string]any // of a policy, and with x- of arguments
	retry := func(kind string, least, most int) set {
		return set{
			"delayed-retry-type": kind, "delayed-retry-min": least, "delayed-retry-max": most,
		}
	}
	good, off := retry("failed", 1000, 60000), retry("disabled", 0, 0)
	for name, c := range map[string]struct {
		args, policy set
		kind         string
		version      audit.Version
		missing      string // of the dead-letter target
		want         string // "" for a queue that is as it must be
	}{
		"arguments": {args: good},
		"of nacks, too": {
			args: retry("all", 1000, 60000), want: "to failed",
		},
		"of nacks, too, by a policy": {
			args: good, policy: set{"delayed-retry-type": "all"},
			want: "type all holds messages that are given back, too",
		},
		"a policy": {policy: good},
		"both": {
			args: retry("all", 1000, 90000), policy: retry("failed", 2000, 60000),
		},
		"a policy takes it away": {args: good, policy: off, want: "it holds none"},
		"a policy makes it less": {
			args: good, policy: retry("failed", 500, 60000), want: "holds them for 500ms to 1m0s",
		},
		"of nacks alone": {args: retry("returned", 1000, 60000), want: "it holds none"},
		"neither":        {want: "it holds none"},
		"the longer delay alone": {
			args: set{"delayed-retry-type": "failed", "delayed-retry-max": 60000},
			want: "it holds none",
		},
		"the shorter delay alone": {
			args: set{"delayed-retry-type": "failed", "delayed-retry-min": 1000},
			want: "holds them for 1s to 1s",
		},
		"the plan's dead-letter queue, not declared yet": {args: good, missing: `queue "orders.dlq"`},
		"no dead-letter target": {
			args: good, missing: `queue "orders.dead"`, want: "may lower the limit at any time",
		},
		"a ttl": {
			args: set{
				"delayed-retry-type": "failed", "delayed-retry-min": 1000, "delayed-retry-max": 60000,
				"message-ttl": 600000,
			},
			want: "its message-ttl of 600000 ms takes rejected messages out of it",
		},
		"a ttl of a policy": {
			args: good, policy: set{"message-ttl": 5000}, want: "message-ttl of 5000 ms",
		},
		"a classic queue":     {args: good, kind: audit.Classic, want: "it is a classic queue"},
		"a broker before 4.3": {args: good, version: four, want: "RabbitMQ 4.0 ignores"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &audit.Facts{
				Kind: audit.Quorum, Arguments: amqp.Table{}, Policy: c.policy, Version: latest,
				DeadLetters: c.missing == "", Missing: c.missing,
			}
			for key, value := range c.args {
				f.Arguments["x-"+key] = value
			}
			if c.kind != "" {
				f.Kind = c.kind
			}
			if c.version != (audit.Version{}) {
				f.Version = c.version
			}
			require.NoError(t, f.RefuseRejects("orders", audit.Plan{}), "a plan without rejects")
			err, held := f.RefuseRejects("orders", plan), f.HeldRejects()
			if strings.Contains(c.want, "holds none") || c.version == four || c.kind == audit.Classic {
				require.Nil(t, held)
			}
			if c.want == "" {
				require.NoError(t, err)
				require.Equal(t, []time.Duration{time.Second, 60 * time.Second, time.Minute},
					[]time.Duration{held(1), held(60), held(61)})
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}
