package topology

import (
	"crypto/tls"
	"testing"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

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
