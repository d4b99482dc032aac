package operate_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology/operate"
)

// Every option that makes no sense is refused before anything is connected.
func TestOpenNamesEveryInvalidOption(t *testing.T) {
	t.Parallel()
	const url = "amqp://guest:hush@127.0.0.1:1/"
	for want, option := range map[string]operate.Option{
		"option 1 is nil":                              nil,
		"WithLogger: the logger is nil":                operate.WithLogger(nil),
		"WithCredentials: the function is nil":         operate.WithCredentials(nil),
		"WithBrokers: url 1: ":                         operate.WithBrokers("localhost"),
		"WithManagement: ":                             operate.WithManagement("localhost"),
		`WithBrokers names vhost "b", and the URL vho`: operate.WithBrokers(url + "b"),
	} {
		_, err := operate.Open(t.Context(), url, option)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "hush")
	}
}

// Given a broker that is away, and a user with a wrong password, when an operator is opened, then
// the error says what to do; a further broker and credentials that are asked for help.
func TestOpenConnects(t *testing.T) {
	t.Parallel()
	const away = "amqp://guest:hush@127.0.0.1:1/"
	_, err := operate.Open(t.Context(), away)
	require.ErrorContains(t, err, "start it or correct the address")
	require.NotContains(t, err.Error(), "hush")

	url, queue := testbroker.URL(t), testbroker.Queue(t)
	rig.DeclareQueue(t, url, queue, amqp.Table{"x-queue-type": "classic"})
	for name, o := range map[string]*operate.Operator{
		"further broker": rig.OpenOperator(t, away, operate.WithBrokers(url)),
		"credentials": rig.OpenOperator(t, strings.Replace(url, "guest:guest", "guest:wrong", 1),
			operate.WithCredentials(func(context.Context) (user, password string, err error) {
				return "guest", "guest", nil
			})),
		"vhost": rig.OpenOperator(t, url+"other", operate.WithAMQP(amqp.Config{Vhost: "/"})),
	} {
		found, err := o.Peek(t.Context(), queue, 1)
		require.NoError(t, err, name)
		require.Empty(t, found, name)
	}
	unknown := errors.New("the vault is closed")
	_, err = operate.Open(t.Context(), url, operate.WithCredentials(
		func(context.Context) (user, password string, err error) { return "", "", unknown }))
	require.ErrorIs(t, err, unknown)
}
