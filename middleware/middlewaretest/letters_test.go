package middlewaretest_test

import (
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

// testdata/letters.jsonl is a file of `millpond dead export orders --all --file letters.jsonl`. A
// service had given up order 8 of another client as permanent, and order 7 of Watermill's publisher
// after two attempts.
const exported = "testdata/letters.jsonl"

// Given an export of the tool, then each letter comes as after a replay: at attempt 1, with its ids
// and metadata, with the attempts before, and without the headers of the broker and of a retry.
func TestLettersOfTheTool(t *testing.T) {
	t.Parallel()
	file, err := os.Open(exported)
	require.NoError(t, err)
	defer file.Close()
	letters, err := middlewaretest.Letters(file)
	require.NoError(t, err)
	require.Len(t, letters, 2)
	var seen []string
	for i, want := range []struct {
		payload, uuid, messageID, correlationID, reason string
		before                                          int
	}{
		{`{"order":8,"total":"12,50"}`, "", "order-8", "cart-3", "permanent", 1},
		{
			`{"order":7,"total":12.5}`, "7f8c9a52-3c55-4f0e-9f6b-0d6d0a2f4b11", "", "", "exhausted", 2,
		},
	} {
		msg := letters[i]
		ctx := msg.Context()
		assert.Equal(t, want.payload, string(msg.Payload))
		assert.Equal(t, want.uuid, msg.UUID)
		d, _ := middleware.DeliveryOf(ctx)
		assert.Equal(t, []string{"orders", "ship", "orders", want.messageID, want.correlationID},
			[]string{d.Queue, d.Handler, d.Topic, d.MessageID, d.CorrelationID})
		assert.Equal(t, 1, middleware.Attempt(ctx))
		state := middleware.StateOf(ctx)
		assert.Equal(t, "orders", state.OriginRoutingKey)
		assert.Len(t, state.History, want.before)
		assert.Equal(t, want.reason, msg.Metadata["millpond-dead-reason"])
		assert.Equal(t, "1", msg.Metadata["millpond-replays"])
		for _, key := range []string{"x-delivery-count", "millpond-publish", "millpond-origin-exchange"} {
			assert.NotContains(t, msg.Metadata, key)
		}

		broker := middlewaretest.NewBroker()
		result := broker.Run(retrying(t, broker, oneAndTen)(failing(-1)), msg)
		seen = append(seen, result.String())
		assert.Len(t, result.State.History, want.before+3)
	}
	assert.Equal(t, "2", letters[0].Metadata["version"])
	assert.Equal(t, "true", letters[0].Metadata["gift"])
	assert.Equal(t, "/wE=", letters[0].Metadata["digest"])
	assert.Equal(t, "7", letters[1].Metadata["tenant"])
	again := "dead-lettered (exhausted) after 3 attempts, delays 1s 10s"
	assert.Equal(t, []string{again, again}, seen)
}

func TestLettersThatCannotBeRead(t *testing.T) {
	t.Parallel()
	good, err := os.ReadFile(exported)
	require.NoError(t, err)
	for text, want := range map[string]string{
		string(good) + "\n{\"body\": 7}\n": "line 4: decode message: json",
		"{":                                "line 1: decode message: unexpected end",
		`{"headers":{"n":{"type":"x"}}}`:   "line 1: decode message: header \"n\"",
		`{"headers":{"_watermill_message_uuid":{"type":"table"}}}`: "line 1: ",
	} {
		letters, err := middlewaretest.Letters(strings.NewReader(text))
		require.ErrorContains(t, err, want)
		require.Empty(t, letters)
	}
	_, err = middlewaretest.Letters(iotest.ErrReader(errBoom))
	require.ErrorIs(t, err, errBoom)
	letters, err := middlewaretest.Letters(strings.NewReader("\n"))
	require.NoError(t, err)
	require.Empty(t, letters)

	other, err := middlewaretest.Letters(strings.NewReader(`{"message_id":"7","body":"x"}`))
	require.NoError(t, err)
	d, ok := middleware.DeliveryOf(other[0].Context())
	require.True(t, ok)
	require.Empty(t, d.Queue)
}
