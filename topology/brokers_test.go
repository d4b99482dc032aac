package topology_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

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
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		URL: first.URL(), AdminURL: url,
		ClientOptions: []topology.Option{topology.WithBrokers("amqp://guest:guest@127.0.0.1:1/", second.URL())},
		Policy:        backoff.List{time.Second},
		Handler: func(*message.Message) ([]*message.Message, error) {
			if calls.Add()%2 == 1 {
				return nil, rig.ErrFailed
			}
			return nil, nil
		},
	})
	rig.Publish(t, url, "", r.Queue, amqp.Publishing{Body: []byte("over the second")})
	rig.WaitFor(t, "it is retried", func() bool { return calls.Count() == 2 })
	require.Positive(t, second.Connections())

	first.Refuse(false)
	second.Refuse(true)
	second.Cut()
	rig.Publish(t, url, "", r.Queue, amqp.Publishing{Body: []byte("over the first")})
	rig.WaitFor(t, "it is retried", func() bool { return calls.Count() == 4 })
	require.NoError(t, r.Client.Healthy())
}

func TestBrokersMustShareAVhost(t *testing.T) {
	t.Parallel()
	_, err := topology.Open(t.Context(), rig.ConnectionConfig("amqp://127.0.0.1:1/a"), topology.PerQueue{}, topology.WithBrokers("amqp://127.0.0.1:1/b"))
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
	var calls rig.Timeline
	url := strings.Replace(node.URL(), "guest:guest", "shop:outdated", 1)
	r := rig.Start(t, rig.Config{
		URL: url, AdminURL: node.URL(), Queue: "orders",
		ClientOptions: []topology.Option{
			topology.WithName("shop"),
			topology.WithCredentials(func(context.Context) (string, string, error) {
				if asked.Add(1) == 4 {
					return "", "", errors.New("the vault is sealed")
				}
				return "shop", password.Load().(string), nil
			}),
		},
		Policy: backoff.List{time.Second},
		Handler: func(*message.Message) ([]*message.Message, error) {
			calls.Add()
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
	rig.Publish(t, node.URL(), "", "orders", amqp.Publishing{Body: []byte("after the change")})
	rig.WaitFor(t, "it is handled", func() bool { return calls.Count() == 1 })
	require.Greater(t, asked.Load(), before)
	r.Stop()
	require.NotContains(t, r.Logs.Text(), "second")
}
