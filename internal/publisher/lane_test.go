package publisher_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// A dead-letter target that closes its channel at each publish, beside 8 publishers
// of other queues: each of theirs is published once and confirmed.
func TestBadTargetDoesNotDisturbOthers(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	node.Grant(t, testbroker.Grant{VHost: "/", User: "shop", Configure: ".*", Write: "^(amq\\.default|no-such-exchange|healthy.*)$", Read: ".*"})
	redeclare(t, node.URL(), "dead", nil)
	type target struct {
		exchange, key, user string
		code                int
	}
	for name, to := range map[string]target{
		"missing":   {exchange: "no-such-exchange", key: "k", code: amqp.NotFound},
		"forbidden": {exchange: "amq.direct", key: "k", code: amqp.AccessRefused},
		// Other messages to the same queue work meanwhile.
		"one message": {key: "dead", user: "somebody else", code: amqp.PreconditionFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := "healthy " + name
			redeclare(t, node.URL(), queue, nil)
			p := open(t, node.URLOf("shop"), long)
			p.recovers(t, queue)
			p.recovers(t, "dead")
			bad := &letter{exchange: to.exchange, key: to.key, user: to.user, body: "bad"}
			if to.exchange == "" { // the default exchange has worked, so that the first one closes the channel
				require.False(t, bad.try(t.Context(), p))
			}

			const healthy, each, failures = 8, 100, 30
			var done atomic.Int64
			var disturber sync.WaitGroup
			disturber.Go(func() {
				for bad.tries < failures || done.Load() < healthy*each/2 {
					require.False(t, bad.try(t.Context(), p))
					var reason *amqp.Error
					if assert.ErrorAs(t, bad.outcome, &reason) {
						assert.Equal(t, to.code, reason.Code)
					}
					assert.NoError(t, p.say(t.Context(), "dead", "good"))
				}
			})
			before := len(p.recorder.published())
			calls := callers(healthy, each, func(_ int, body string) error {
				defer done.Add(1)
				return p.say(t.Context(), queue, body)
			})
			disturber.Wait()
			for _, c := range calls {
				assert.NoError(t, c.err, c.body)
			}
			found := bodies(t, node.URL(), queue)
			for _, c := range calls {
				assert.Equal(t, 1, found[c.body], "copies of %s", c.body)
			}
			assert.Greater(t, len(p.recorder.published())-before, healthy*each)
			assert.Equal(t, 1, p.recorder.connections())
		})
	}
}

// Once the target works it is used by many callers at once again, on the channel of
// all.
func TestBadTargetComesBack(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	exchange := queue + ".exchange"
	p := open(t, url, long)
	p.recovers(t, queue)
	l := letter{exchange: exchange, key: queue, body: "letter"}
	for range 3 {
		require.False(t, l.try(t.Context(), p))
	}
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.ExchangeDeclare(exchange, "fanout", false, false, false, false, nil))
	defer func() { require.NoError(t, ch.ExchangeDelete(exchange, false, false)) }()
	require.NoError(t, ch.QueueBind(queue, "", exchange, false, nil))
	require.True(t, l.try(t.Context(), p), "%v", l.outcome)
	other := letter{exchange: exchange, key: queue, body: "other"}
	require.True(t, other.try(t.Context(), p), "%v", other.outcome)
	places := p.recorder.published()
	assert.Equal(t, places[0], places[len(places)-1], "not on the common channel")
	assert.Equal(t, map[string]int{"again": 1, "letter": 1, "other": 1}, bodies(t, url, queue))
}

// Many bad targets take a bounded number of channels, and others still work.
func TestManyBadTargetsTakeFewChannels(t *testing.T) {
	t.Parallel()
	s := peer.Start(t, func(p *peer.Publish) {
		if p.Exchange == "" {
			p.Ack(p.Tag, false)
			return
		}
		p.CloseChannel(404, "NOT_FOUND")
	})
	p := open(t, s.URL(), long)
	p.recovers(t, "healthy")
	for _, c := range callers(8, 50, func(caller int, body string) error {
		return p.Publish(t.Context(), fmt.Sprint("missing ", body), "k", amqp.Publishing{})
	}) {
		assert.ErrorIs(t, c.err, publisher.ErrUnknown)
	}
	assert.LessOrEqual(t, p.Lanes(), 64)
	for _, c := range callers(8, 50, func(_ int, body string) error { return p.say(t.Context(), "healthy", body) }) {
		assert.NoError(t, c.err)
	}
}

// Start of many messages without a call of wait does not wait for the only place of a
// target that has not worked yet.
func TestStartDoesNotWaitForItself(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	exchange := queue + ".exchange"
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.ExchangeDeclare(exchange, "fanout", false, false, false, false, nil))
	defer func() { require.NoError(t, ch.ExchangeDelete(exchange, false, false)) }()
	require.NoError(t, ch.QueueBind(queue, "", exchange, false, nil))
	p := open(t, url, long)
	var waits []func() error
	within(t, 0, "starting", func() {
		for i := range 150 {
			wait, err := p.Start(t.Context(), exchange, "", amqp.Publishing{Body: fmt.Append(nil, i)})
			require.NoError(t, err)
			waits = append(waits, wait)
		}
	})
	for _, wait := range waits {
		assert.NoError(t, wait())
	}
	for i := range waits {
		msg, ok, err := ch.Get(queue, true)
		require.NoError(t, err)
		require.True(t, ok)
		assert.Equal(t, fmt.Sprint(i), string(msg.Body), "order")
	}
}
