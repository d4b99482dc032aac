package operate_test

import (
	"maps"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// A list whose letters are not in the queue again says how many are missing; it said
// nothing. Where letters expire, or a consumer takes them, none is missing. Here the
// queue is deleted while the list holds its letters, and declared anew.
func TestLettersThatAreNotBackAreMissed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		arguments amqp.Table
		expire    string // of each letter
		consumed  bool
		missing   bool
		limit     int
	}{
		{
			name:      "quorum",
			arguments: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30)},
			missing:   true,
		},
		{name: "classic", arguments: amqp.Table{"x-queue-type": "classic"}, missing: true},
		{
			name: "listed with a limit", arguments: amqp.Table{"x-queue-type": "classic"}, limit: 3,
			missing: true,
		},
		{
			name: "with a time to live",
			arguments: amqp.Table{
				"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30), "x-message-ttl": int64(1),
			},
		},
		{
			name:      "with a length",
			arguments: amqp.Table{"x-queue-type": "classic", "x-max-length": int64(1)},
		},
		{name: "with expirations", arguments: amqp.Table{"x-queue-type": "classic"}, expire: "86400000"},
		{name: "consumed", arguments: amqp.Table{"x-queue-type": "classic"}, consumed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, topology.Quorum)
			queue := testbroker.Queue(t)
			declare := func(args amqp.Table) {
				_, err := b.ch.QueueDeclare(queue, true, false, false, false, args)
				require.NoError(t, err)
			}
			lasting := maps.Clone(c.arguments)
			delete(lasting, "x-message-ttl")
			delete(lasting, "x-max-length")
			declare(lasting)
			b.publish(queue, amqp.Publishing{Expiration: c.expire}, amqp.Publishing{Expiration: c.expire},
				amqp.Publishing{Expiration: c.expire})
			b.plan.Dead.RoutingKey = queue
			seen := 0
			var err error
			for _, listed := range b.Dead(t.Context(), b.plan, operate.Filter{}, c.limit) {
				if err = listed; err != nil {
					break
				}
				if seen++; seen == 3 {
					_, err := b.ch.QueueDelete(queue, false, false, false)
					require.NoError(t, err)
					declare(c.arguments)
					if c.consumed {
						_, err := b.ch.Consume(queue, "", true, false, false, false, nil)
						require.NoError(t, err)
					}
				}
			}
			require.Equal(t, 3, seen)
			if !c.missing {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(
				t, err,
				"3 messages that were given back are not in it: another client has taken them, "+
					"or the broker has deleted them",
			)
			t.Log(err)
		})
	}
}
