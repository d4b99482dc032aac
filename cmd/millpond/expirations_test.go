package main

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware/header"
)

// An engineer sees the end of a message, and the time that its expiration was counted from.
func TestShowSaysWhatADeadlineIsCountedFrom(t *testing.T) {
	t.Parallel()
	s := newService(t, "quorum")
	end := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for from, text := range map[string]string{
		header.FromTimestamp: ", its expiration counted from the timestamp of the producer",
		header.FromArrival:   ", its expiration counted from its first arrival",
		header.FromPublish:   ", its expiration counted from the publish of the delayed message",
		"":                   "\n",
	} {
		id := "from-" + from
		headers := amqp.Table{}
		state := header.RetryState{
			Reason: header.ReasonDeadline, DeadAt: end, Deadline: end, DeadlineFrom: from,
		}
		for key, value := range state.DeadHeaders(s.queue) {
			headers[key] = value
		}
		s.publish(s.queue+".dlq", amqp.Publishing{MessageId: id, Headers: headers})
		require.Regexp(t, `(?m)^deadline +2026-03-01 12:00:00Z`+text,
			s.tool("dead", "show", s.queue, id).out)
		asJSON := s.tool("dead", "show", s.queue, id, "--json").out
		require.Contains(t, asJSON, `"deadline": "2026-03-01T12:00:00Z"`)
		if from != "" {
			require.Contains(t, asJSON, `"deadline_from": "`+from+`"`)
		} else {
			require.NotContains(t, asJSON, "deadline_from\":")
		}
	}
}
