package operate_test

import (
	"context"
	"fmt"
	"maps"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// asking runs questions on new channels of a connection, and calls before with the number of each.
func asking(t *testing.T, url string, before func(question int)) audit.Runner {
	t.Helper()
	conn, question := testbroker.Dial(t, url), 0
	return func(_ context.Context, f func(*amqp.Channel) error) error {
		question++
		before(question)
		ch, err := conn.Channel()
		require.NoError(t, err)
		defer func() { _ = ch.Close() }()
		return f(ch)
	}
}

// Given a queue that vanishes before or between the questions for its type and its arguments, when
// they are asked, then none of them creates it.
func TestAskingWhatAQueueIsCreatesNone(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	for _, kind := range []string{audit.Classic, audit.Quorum} {
		for vanishes := range 3 {
			t.Run(fmt.Sprintf("%s, before question %d", kind, vanishes+1), func(t *testing.T) {
				t.Parallel()
				queue, ch := testbroker.Queue(t), testbroker.Channel(t, url)
				args := amqp.Table{"x-queue-type": kind, "x-message-ttl": int64(5000)}
				_, err := ch.QueueDeclare(queue, true, false, false, false, args)
				require.NoError(t, err)
				run := asking(t, url, func(question int) {
					if question == vanishes+1 {
						_, err := ch.QueueDelete(queue, false, false, false)
						require.NoError(t, err)
					}
				})
				likely := amqp.Table{"x-message-ttl": int64(1000)}
				f, err := audit.Learn(t.Context(), run, queue, likely, audit.Version{Major: 4}, nil)
				if vanishes == 0 {
					require.True(t, audit.IsCode(err, amqp.NotFound), "%v", err)
				} else {
					require.NoError(t, err)
					require.False(t, f.Known)
				}
				require.Equal(t, -1, testbroker.Depth(t, url, queue))
			})
		}
	}
}

// The arguments of a queue are found out one by one, whichever the configuration names.
func TestArgumentsOfAQueueAreFoundOut(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	args := amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(8), "x-overflow": "drop-head",
		"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": "it's 'x'",
		"x-single-active-consumer": true, "x-message-ttl": int64(100000),
		"x-quorum-initial-group-size": int64(1),
	}
	_, err := testbroker.Channel(t, url).QueueDeclare(queue, true, false, false, false, args)
	require.NoError(t, err)
	for name, configured := range map[string]amqp.Table{
		"nothing is known": nil,
		"another is meant": {
			"x-delivery-limit": int32(20), "x-max-length": int64(5), "x-overflow": "reject-publish",
			"x-message-ttl": "1",
		},
		"the same": args,
	} {
		run := asking(t, url, func(int) {})
		f, err := audit.Learn(t.Context(), run, queue, configured, audit.Version{Major: 4}, nil)
		require.NoError(t, err, name)
		require.Equal(t, audit.Quorum, f.Kind, name)
		require.True(t, f.Known, name)
		require.True(t, f.DeadLetters, name)
		limit, _ := f.DeliveryLimit()
		require.Equal(t, 8, limit, name)
		require.Equal(t, "it's 'x'", f.Arguments["x-dead-letter-routing-key"], name)
		found, want := maps.Clone(f.Arguments), maps.Clone(args)
		delete(found, "x-message-ttl") // a text where a text was meant
		delete(want, "x-message-ttl")
		require.Equal(t, len(want), len(found), "%s: %v", name, found)
	}
}
