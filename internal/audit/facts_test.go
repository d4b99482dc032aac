package audit_test

import (
	"encoding/json"
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
