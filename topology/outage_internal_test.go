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
		{30 * time.Minute, 10 * time.Second, 28*time.Minute + 40*time.Second},
		{5 * time.Minute, 10 * time.Second, 4*time.Minute + 10*time.Second},
		{10 * time.Second, 10 * time.Second, 5 * time.Second}, // no room for two tries
		{maxHold, 10 * time.Second, maxHold - 80*time.Second},
	} {
		require.Equal(t, c.want, holdFor(c.timeout, c.confirm), "%v", c.timeout)
	}
}

func TestConsumerTimeoutOfTheArguments(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		queue, consume any
		option, want   time.Duration
	}{
		{nil, nil, 0, 30 * time.Minute},
		{int64(60_000), nil, 0, time.Minute},
		{int32(60_000), 30_000, 0, 30 * time.Second},
		{int64(7_200_000), nil, 0, 30 * time.Minute}, // 3.10 ignores it (F34)
		{"60000", -1, 0, 30 * time.Minute},
		{int64(60_000), nil, 2 * time.Hour, 2 * time.Hour},
	} {
		s := &Subscriber{
			cfg: consumeConfig{
				queueArgs: amqp.Table{"x-consumer-timeout": c.queue}, arguments: amqp.Table{"x-consumer-timeout": c.consume},
			},
			opts: subscriberOptions{consumerTimeout: c.option},
		}
		require.Equal(t, c.want, s.consumerTimeout(), "%+v", c)
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
