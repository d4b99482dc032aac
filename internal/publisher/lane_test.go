package publisher_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// A target closes its channel at each publish, beside 8 publishers of other queues. Each of their
// messages is published once and confirmed.
func TestBadTargetDoesNotDisturbOthers(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	node.Grant(t, testbroker.Grant{
		VHost: "/", User: "shop", Configure: ".*",
		Write: "^(amq\\.default|no-such-exchange|healthy.*)$", Read: ".*",
	})
	declare(t, node.URL(), "dead", nil)
	type target struct {
		exchange, key, user string
		code                int
	}
	for name, to := range map[string]target{
		"missing":   {exchange: "no-such-exchange", key: "k", code: amqp.NotFound},
		"forbidden": {exchange: "amq.direct", key: "k", code: amqp.AccessRefused},
		// Other messages to the same queue work meanwhile.
		"one message": {key: "dead", user: "other", code: amqp.PreconditionFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := connect(t, node.URLOf("shop"), declare(t, node.URL(), "healthy "+name, nil), long)
			p.url = node.URL()
			p.recovers()
			require.NoError(t, p.sayTo(t.Context(), "dead", "good"))
			bad := &letter{rig: p, exchange: to.exchange, key: to.key, user: to.user, body: "bad"}
			if to.exchange == "" { // the default exchange has worked, so this closes the common channel
				require.False(t, bad.try())
			}

			const healthy, each, failures = 8, 100, 30
			var done atomic.Int64
			var disturber sync.WaitGroup
			disturber.Go(func() {
				for bad.tries < failures || done.Load() < healthy*each/2 {
					require.False(t, bad.try())
					var reason *amqp.Error
					if assert.ErrorAs(t, bad.outcome, &reason) {
						assert.Equal(t, to.code, reason.Code)
					}
					assert.NoError(t, p.sayTo(t.Context(), "dead", "good"))
				}
			})
			before := len(p.client.published())
			calls := callers(healthy, each, func(_ int, body string) error {
				defer done.Add(1)
				return p.say(body)
			})
			disturber.Wait()
			for _, c := range calls {
				assert.NoError(t, c.err, c.body)
			}
			assert.Equal(t, healthy*each, p.succeeded(calls))
			assert.Greater(t, len(p.client.published())-before, healthy*each)
			assert.Equal(t, 1, p.client.connections())
		})
	}
}

// Once the target works, many callers at once use it again, on the common channel.
func TestBadTargetComesBack(t *testing.T) {
	t.Parallel()
	p := onBroker(t, nil)
	exchange := p.queue + ".exchange"
	p.recovers()
	l, other := p.letter("letter"), p.letter("other")
	l.exchange, other.exchange = exchange, exchange
	for range 3 {
		require.False(t, l.try())
	}
	p.bind(exchange)
	require.True(t, l.try(), "%v", l.outcome)
	require.True(t, other.try(), "%v", other.outcome)
	places := p.client.published()
	assert.Equal(t, places[0], places[len(places)-1], "not on the common channel")
	p.hasOnly("again", "letter", "other")
}

// Many bad targets take a bounded number of channels, and others still work.
func TestManyBadTargetsTakeFewChannels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, _ := onPeer(t, long, func(p *peer.Publish) {
			if p.Exchange == "" {
				ack(p)
				return
			}
			p.CloseChannel(404, "NOT_FOUND")
		})
		p.recovers()
		for _, c := range callers(8, 50, func(_ int, body string) error {
			return p.Publish(t.Context(), fmt.Sprint("missing ", body), "k", amqp.Publishing{})
		}) {
			assert.ErrorIs(t, c.err, publisher.ErrUnknown)
		}
		assert.LessOrEqual(t, p.Lanes(), 64)
		for _, c := range callers(8, 50, func(_ int, body string) error { return p.say(body) }) {
			assert.NoError(t, c.err)
		}
	})
}
