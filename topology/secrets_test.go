package topology_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology/operate"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Whatever becomes of a message, and of the broker: no log line of any level, no
// error and no header holds a payload, a password or a stack.
func TestNothingSecretIsLoggedOrWritten(t *testing.T) {
	t.Parallel()
	const password, payload = "s3cr3t-password", "s3cr3t-payload"
	node := testbroker.Private(t)
	node.Ctl(t, "add_user", "shop", password)
	node.Ctl(t, "set_permissions", "shop", ".*", ".*", ".*")
	withPassword := func(url string) string { return strings.Replace(url, "guest:guest", "shop:"+password, 1) }

	fail := func(kind string) error {
		panics := func(*message.Message) ([]*message.Message, error) { panic(errors.New("the shop is on fire")) }
		switch {
		case strings.Contains(kind, "panics"):
			_, err := panics(nil)
			return err
		case strings.Contains(kind, "is recovered"):
			_, err := wmiddleware.Recoverer(panics)(nil)
			return err
		}
		return rig.ErrFailed
	}
	begun, stopped := make(chan struct{}, 10), make(chan struct{})
	r := rig.Start(t, rig.Config{
		URL: withPassword(node.URL()), AdminURL: node.URL(), Queue: "orders", Verbose: true, Configure: rig.Picky,
		Policy:        backoff.List{100 * time.Millisecond},
		ClientOptions: []topology.Option{topology.WithManagement("http://shop:" + password + "@127.0.0.1:1/")},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			kind := msg.Metadata.Get("kind")
			switch {
			case kind == "lives through a restart":
				begun <- struct{}{}
				<-stopped
			case strings.HasSuffix(kind, "and waits"):
				return nil, middleware.RetryAfter(fail(kind), time.Hour)
			}
			return nil, fail(kind)
		},
	})
	kinds := []string{
		"fails", "panics", "is recovered", "cannot be decoded",
		"fails and waits", "is recovered and waits",
	}
	for _, kind := range kinds {
		r.Publish(amqp.Publishing{Headers: amqp.Table{"kind": kind}, CorrelationId: kind, Body: []byte(payload)})
	}
	r.Publish(amqp.Publishing{Headers: amqp.Table{"big": strings.Repeat("v", 130_000)}, CorrelationId: "oversized", Body: []byte(payload)})
	require.NoError(t, rig.Forge(t, r.URL, r.Queue, rig.HeadersOnly(unreadable()["nested 33 deep"])))

	var written []string
	keep := func(d amqp.Delivery) string {
		written = append(written, fmt.Sprintf("%s: %+v %q", d.CorrelationId, d.Headers, d.Type))
		return d.CorrelationId
	}
	dead := map[string]bool{}
	for range 6 {
		dead[keep(rig.Take(t, node.URL(), "orders.dlq"))] = true
	}
	require.Equal(t, map[string]bool{"fails": true, "panics": true, "is recovered": true, "cannot be decoded": true, "oversized": true, "": true}, dead)

	// The broker goes away while a message is handled, and comes back.
	o := rig.OpenOperator(t, withPassword(node.URL()),
		operate.WithManagement("http://shop:"+password+"@127.0.0.1:1/"))
	findings, err := o.Verify(t.Context(), r.Plan)
	errs := fmt.Sprint(findings, err)
	require.Contains(t, errs, "127.0.0.1:1")
	r.Publish(amqp.Publishing{Headers: amqp.Table{"kind": "lives through a restart"}, CorrelationId: "restart", DeliveryMode: amqp.Persistent, Body: []byte(payload)})
	<-begun
	node.Stop(t)
	close(stopped)
	rig.WaitFor(t, "a reconnect to be refused", func() bool {
		return strings.Contains(r.Logs.Text(), "Cannot reconnect") && strings.Contains(r.Logs.Text(), "connection refused")
	})
	for _, url := range []string{withPassword(node.URL()), "amqp://shop:" + password + "/x@host:1/", "http://shop:" + password + "@host/"} {
		_, err := topology.Open(t.Context(), rig.ConnectionConfig(url), topology.PerQueue{}, topology.WithBrokers(url))
		require.Error(t, err)
		errs += "\n" + err.Error()
	}
	node.Start(t)
	rig.WaitFor(t, "it is dead-lettered in the end", func() bool { return testbroker.Depth(t, node.URL(), "orders.dlq") == 1 })
	require.Equal(t, "restart", keep(rig.Take(t, node.URL(), "orders.dlq")))
	node.Ctl(t, "change_password", "shop", "another")
	node.Ctl(t, "close_all_connections", "so that the password is refused")
	rig.WaitFor(t, "the password to be refused", func() bool { return strings.Contains(r.Logs.Text(), "username or password") })
	r.Stop()
	for range 2 { // they come back to their queue with the headers they wait with
		require.Contains(t, keep(rig.Take(t, node.URL(), "orders")), "and waits")
	}

	require.Contains(t, r.Logs.Text(), "the shop is on fire")
	for what, text := range map[string]string{"log": r.Logs.Text(), "errors": errs, "headers": strings.Join(written, "\n")} {
		for _, secret := range []string{payload, password, "goroutine ", "runtime/debug", ".go:"} {
			for line := range strings.Lines(text) {
				require.NotContains(t, line, secret, what)
			}
		}
	}
	t.Logf("%d lines of log, %d messages", strings.Count(r.Logs.Text(), "\n"), len(written))
}
