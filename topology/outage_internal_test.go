package topology

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

func TestHoldEndsBeforeTheConsumerTimeout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ timeout, confirm, want time.Duration }{
		{30 * time.Minute, 10 * time.Second, 28*time.Minute + 30*time.Second},
		{5 * time.Minute, 10 * time.Second, 4 * time.Minute},
		{10 * time.Second, 10 * time.Second, 5 * time.Second}, // no room for three tries
		{maxHold, 10 * time.Second, maxHold - 90*time.Second},
	} {
		require.Equal(t, c.want, holdFor(c.timeout, c.confirm), "%v", c.timeout)
	}
}

func TestConsumerTimeoutThatIsKnown(t *testing.T) {
	t.Parallel()
	old, four, latest := brokerVersion{3, 10}, brokerVersion{4, 0}, brokerVersion{4, 3}
	for name, c := range map[string]struct {
		version                brokerVersion
		queue, policy, consume any
		option, want           time.Duration
	}{
		"nothing":                    {version: latest, want: 30 * time.Minute},
		"of the queue":               {version: four, queue: int64(60_000), want: time.Minute},
		"of the queue, longer":       {version: four, queue: int64(7_200_000), want: 2 * time.Hour},
		"of the queue, 3.10":         {version: old, queue: int64(60_000), want: 30 * time.Minute},
		"of a policy":                {version: four, policy: int64(60_000), want: time.Minute},
		"of the consumer":            {version: latest, consume: int32(30_000), want: 30 * time.Second},
		"of the consumer, 4.0":       {version: four, consume: int32(30_000), want: 30 * time.Minute},
		"several: the shortest":      {version: latest, queue: int64(60_000), policy: int64(50_000), consume: 90_000, want: 50 * time.Second},
		"no number":                  {version: latest, queue: "60000", consume: -1, want: 30 * time.Minute},
		"the option before the rest": {version: latest, queue: int64(60_000), option: 2 * time.Hour, want: 2 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &queueFacts{
				version: c.version, arguments: amqp.Table{"x-consumer-timeout": c.queue},
				policy: map[string]any{"consumer-timeout": c.policy},
			}
			require.Equal(t, c.want, f.consumerTimeout(c.option, amqp.Table{"x-consumer-timeout": c.consume}))
		})
	}
}

// A probe costs a delivery, so the pauses between probes grow. A message that has no
// delivery left is spared for a day.
func TestPausesBetweenProbesGrow(t *testing.T) {
	t.Parallel()
	var o outage
	require.True(t, o.begin(20, false))
	require.False(t, o.begin(19, false), "several messages are held at once")
	require.Zero(t, o.pause(), "the first probe")
	var pauses []time.Duration
	for range 7 {
		o.begin(5, true)
		pauses = append(pauses, o.pause())
	}
	require.Equal(t, []time.Duration{
		time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 30 * time.Minute, 30 * time.Minute,
	}, pauses)
	o.begin(0, true)
	require.Equal(t, 24*time.Hour, o.pause())
	over := o.over(true)
	require.NotNil(t, over)
	require.Nil(t, o.over(false), "a consumer that does not probe goes on")
	o.end()
	<-over
	require.True(t, o.begin(3, false), "another outage")
	require.Zero(t, o.pause())
}
