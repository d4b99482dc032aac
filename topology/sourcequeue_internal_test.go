package topology

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

func TestConsumerTimeoutThatIsKnown(t *testing.T) {
	t.Parallel()
	old, four, latest := brokerVersion{3, 10}, brokerVersion{4, 0}, brokerVersion{4, 3}
	for name, c := range map[string]struct {
		version                brokerVersion
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
		"several: the shortest": {version: latest, queue: int64(60_000), policy: int64(50_000),
			consume: 90_000, want: 50 * time.Second},
		"no number": {version: latest, queue: "60000", consume: -1,
			want: 30 * time.Minute},
		"the option before the rest": {version: latest, queue: int64(60_000), option: 2 * time.Hour,
			want: 2 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &queueFacts{
				version: c.version, arguments: amqp.Table{"x-consumer-timeout": c.queue},
				policy: map[string]any{"consumer-timeout": c.policy},
			}
			require.Equal(t, c.want, f.consumerTimeout(c.option,
				amqp.Table{"x-consumer-timeout": c.consume}))
		})
	}
}
