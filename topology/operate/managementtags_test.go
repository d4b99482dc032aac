package operate_test

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// Each error of the management API demanded the tag monitoring. Given a user without a tag, then
// the error of each question names a tag with which the broker answers it, and no larger one.
func TestAnErrorNamesTheTagThatSuffices(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	const vhost = "tags"
	grants := []testbroker.Grant{testbroker.Everything(vhost, "guest")}
	tags := []string{"none", "management", "monitoring", "administrator"} // each may do more
	for _, tag := range tags {
		grants = append(grants,
			testbroker.Grant{VHost: vhost, User: "of-" + tag, Configure: "^$", Write: "^$", Read: "^$"})
	}
	node.Grant(t, grants...)
	of := map[string]*management.API{}
	for _, tag := range tags {
		if tag != "none" {
			node.Ctl(t, "set_user_tags", "of-"+tag, tag)
		}
		var err error
		of[tag], err = management.New(
			strings.Replace(api, "guest:guest", "of-"+tag+":of-"+tag, 1), nil)
		require.NoError(t, err)
	}
	rig.DeclareQueue(t, node.URL()+vhost, "orders", amqp.Table{"x-queue-type": "classic"})
	ctx := t.Context()
	for name, ask := range map[string]func(*management.API) error{
		"queue": func(a *management.API) error { _, err := a.Queue(ctx, vhost, "orders"); return err },
		"queues": func(a *management.API) error {
			_, err := a.Queues(ctx, vhost, func(management.Queue) {})
			return err
		},
		"exchanges": func(a *management.API) error {
			_, err := a.Exchanges(ctx, vhost, func(management.Exchange) {})
			return err
		},
		"names": func(a *management.API) error {
			_, err := a.Names(ctx, "queues", vhost, "o")
			return err
		},
		"policies": func(a *management.API) error { _, err := a.Policies(ctx, vhost); return err },
		"operator policies": func(a *management.API) error {
			_, err := a.OperatorPolicies(ctx, vhost)
			return err
		},
		"bindings": func(a *management.API) error {
			_, err := a.Bindings(ctx, vhost, "amq.topic")
			return err
		},
		"feature flags": func(a *management.API) error { _, err := a.FeatureFlags(ctx); return err },
		"nodes":         func(a *management.API) error { _, err := a.Nodes(ctx); return err },
	} {
		err, suffices := ask(of["none"]), 1
		require.Error(t, err, name)
		for suffices < len(tags) && ask(of[tags[suffices]]) != nil {
			suffices++
		}
		text, tag := err.Error(), tags[suffices]
		if tag == "administrator" { // feature flags before RabbitMQ 4.0
			require.Contains(t, text, "(before RabbitMQ 4.0 administrator)", name)
		} else {
			require.Contains(t, text, "the tag "+tag+" ", name)
		}
	}
}
