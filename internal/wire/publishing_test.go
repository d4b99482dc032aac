package wire_test

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/internal/wire"
)

func keepAll(string) bool { return false }

// full returns a delivery in which nothing is zero.
func full() amqp.Delivery {
	return amqp.Delivery{
		Acknowledger:    nobody{},
		Headers:         amqp.Table{"tenant": "a", "n": int32(5), "list": []any{amqp.Table{"k": []byte("v")}}},
		ContentType:     "application/json",
		ContentEncoding: "gzip",
		DeliveryMode:    amqp.Transient,
		Priority:        7,
		CorrelationId:   "corr",
		ReplyTo:         "answers",
		Expiration:      "60000",
		MessageId:       "id-1",
		Timestamp:       time.Unix(1700000000, 0),
		Type:            "order.placed",
		UserId:          "guest",
		AppId:           "shop",
		ConsumerTag:     "tag",
		MessageCount:    3,
		DeliveryTag:     4,
		Redelivered:     true,
		Exchange:        "orders",
		RoutingKey:      "eu.orders",
		Body:            []byte("body"),
	}
}

type nobody struct{}

func (nobody) Ack(uint64, bool) error        { return nil }
func (nobody) Nack(uint64, bool, bool) error { return nil }
func (nobody) Reject(uint64, bool) error     { return nil }

func TestPublishingKeepsTheDelivery(t *testing.T) {
	t.Parallel()
	d := full()
	got := wire.Publishing(&d, keepAll, map[string]string{"note": "1"})
	assert.Equal(t, amqp.Publishing{
		Headers:         amqp.Table{"tenant": "a", "n": int32(5), "list": []any{amqp.Table{"k": []byte("v")}}, "note": "1"},
		ContentType:     "application/json",
		ContentEncoding: "gzip",
		DeliveryMode:    amqp.Persistent,
		Priority:        7,
		CorrelationId:   "corr",
		ReplyTo:         "answers",
		Expiration:      "", // it would shorten the wait
		MessageId:       "id-1",
		Timestamp:       time.Unix(1700000000, 0),
		Type:            "order.placed",
		UserId:          "", // the broker refuses another user's
		AppId:           "shop",
		Body:            []byte("body"),
	}, got)
	assert.Equal(t, full(), d, "the delivery is changed")

	got.Headers["more"] = "x"
	assert.NotContains(t, d.Headers, "more")
}

func TestPublishingStripsWhatBelongsToTheBroker(t *testing.T) {
	t.Parallel()
	for header, stripped := range map[string]bool{
		"x-death":                true,
		"x-first-death-exchange": true,
		"x-first-death-queue":    true,
		"x-first-death-reason":   true,
		"x-last-death-exchange":  true,
		"x-last-death-queue":     true,
		"x-last-death-reason":    true,
		"x-delivery-count":       true,
		"x-acquired-count":       true,
		"CC":                     true,
		"BCC":                    true,
		"cc":                     false, // names are case-sensitive to the broker
		"x-tenant":               false,
		"x-match":                false,
		"traceparent":            false,
		"":                       false,
	} {
		t.Run(header, func(t *testing.T) {
			t.Parallel()
			d := amqp.Delivery{Headers: amqp.Table{header: "v", "other": int64(1)}}
			want := amqp.Table{header: "v", "other": int64(1)}
			if stripped {
				want = amqp.Table{"other": int64(1)}
			}
			assert.Equal(t, want, wire.Publishing(&d, keepAll, nil).Headers)
			assert.Equal(t, amqp.Table{header: "v", "other": int64(1)}, d.Headers, "the delivery is changed")
		})
	}
}

func TestPublishingDropsEarlierNotes(t *testing.T) {
	t.Parallel()
	d := amqp.Delivery{Headers: amqp.Table{"our-a": "old", "our-b": int32(3), "theirs": "kept"}}
	ours := func(header string) bool { return strings.HasPrefix(header, "our-") }
	got := wire.Publishing(&d, ours, map[string]string{"our-b": "new", "our-c": "added"})
	assert.Equal(t, amqp.Table{"our-b": "new", "our-c": "added", "theirs": "kept"}, got.Headers)
	assert.Equal(t, amqp.Table{"our-a": "old", "our-b": int32(3), "theirs": "kept"}, d.Headers, "the delivery is changed")
}

func TestPublishingOfADeliveryWithoutHeadersCanCarryMore(t *testing.T) {
	t.Parallel()
	got := wire.Publishing(&amqp.Delivery{}, keepAll, nil)
	assert.Empty(t, got.Headers)
	assert.NotPanics(t, func() { got.Headers["nonce"] = "1" })
	assert.Equal(t, amqp.Persistent, got.DeliveryMode)
}

func TestCloneSharesNothing(t *testing.T) {
	t.Parallel()
	d := full()
	c := wire.Clone(&d)

	want := full()
	want.Acknowledger = nil
	assert.Equal(t, want, c)

	c.Body[0] = 'X'
	c.Headers["tenant"] = "b"
	c.Headers["new"] = true
	table := c.Headers["list"].([]any)[0].(amqp.Table)
	table["k"].([]byte)[0] = 'X'
	table["new"] = true
	c.Headers["list"].([]any)[0] = nil
	assert.Equal(t, full(), d, "the delivery is changed through its clone")
}

func TestCloneCannotBeAcked(t *testing.T) {
	t.Parallel()
	d := full()
	c := wire.Clone(&d)
	assert.Error(t, c.Ack(false))
	assert.Error(t, c.Nack(false, true))
	assert.Error(t, c.Reject(true))
	assert.NoError(t, d.Ack(false))
}

func TestCloneKeepsWhatIsNil(t *testing.T) {
	t.Parallel()
	d := amqp.Delivery{Headers: amqp.Table{"t": amqp.Table(nil), "l": []any(nil), "b": []byte(nil), "n": nil}}
	assert.Equal(t, d, wire.Clone(&d))
	assert.Nil(t, wire.Clone(&amqp.Delivery{}).Headers)
	assert.Nil(t, wire.Clone(&amqp.Delivery{}).Body)
}
