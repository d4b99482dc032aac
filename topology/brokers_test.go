package topology_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// Several URLs are tried in turn: at the start, and when the one in use is away.
func TestBrokersAreTriedInTurn(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	first, second := testbroker.NewProxy(t, url), testbroker.NewProxy(t, url)
	first.Refuse(true)
	var calls timeline
	r := newRig(t, rigConfig{
		url: first.URL(), adminURL: url,
		clientOptions: []topology.Option{topology.WithBrokers("amqp://guest:guest@127.0.0.1:1/", second.URL())},
		policy:        backoff.List{time.Second},
		handler: func(*message.Message) ([]*message.Message, error) {
			if calls.add()%2 == 1 {
				return nil, errFailed
			}
			return nil, nil
		},
	})
	publish(t, url, "", r.queue, amqp.Publishing{Body: []byte("over the second")})
	testbroker.WaitFor(t, "it is retried", patience, func() bool { return calls.count() == 2 })
	require.Positive(t, second.Connections())

	first.Refuse(false)
	second.Refuse(true)
	second.Cut()
	publish(t, url, "", r.queue, amqp.Publishing{Body: []byte("over the first")})
	testbroker.WaitFor(t, "it is retried", patience, func() bool { return calls.count() == 4 })
	require.NoError(t, r.client.Healthy())
}

func TestBrokersMustShareAVhost(t *testing.T) {
	t.Parallel()
	_, err := topology.Open(t.Context(), connection("amqp://127.0.0.1:1/a"), topology.PerQueue{}, topology.WithBrokers("amqp://127.0.0.1:1/b"))
	require.ErrorContains(t, err, `WithBrokers names vhost "b"`)
}

// Credentials are asked for with every connect; the connections carry a name
// that a person recognises.
func TestCredentialsAreAskedForAgain(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	node.Grant(t, testbroker.Everything("/", "shop"))
	var password atomic.Value
	password.Store("shop")
	var asked atomic.Int64
	var calls timeline
	url := strings.Replace(node.URL(), "guest:guest", "shop:outdated", 1)
	r := newRig(t, rigConfig{
		url: url, adminURL: node.URL(), queue: "orders",
		clientOptions: []topology.Option{
			topology.WithName("shop"),
			topology.WithCredentials(func(context.Context) (string, string, error) {
				if asked.Add(1) == 4 {
					return "", "", errors.New("the vault is sealed")
				}
				return "shop", password.Load().(string), nil
			}),
		},
		policy: backoff.List{time.Second},
		handler: func(*message.Message) ([]*message.Message, error) {
			calls.add()
			return nil, nil
		},
	})
	names := node.Ctl(t, "list_connections", "client_properties")
	require.Contains(t, names, "shop: millpond retries")
	require.Contains(t, names, "shop: millpond subscriber")

	password.Store("second")
	node.Ctl(t, "change_password", "shop", "second")
	before := asked.Load()
	node.Ctl(t, "close_all_connections", "rotated")
	publish(t, node.URL(), "", "orders", amqp.Publishing{Body: []byte("after the change")})
	testbroker.WaitFor(t, "it is handled", patience, func() bool { return calls.count() == 1 })
	require.Greater(t, asked.Load(), before)
	r.stop()
	require.NotContains(t, r.logs.text(), "second")
}
