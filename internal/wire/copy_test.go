package wire_test

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/internal/wire/wiretest"
)

func keepAll(string) bool { return false }

// full returns a delivery in which nothing is zero.
func full() amqp.Delivery {
	list := []any{amqp.Table{"k": []byte("v")}}
	return amqp.Delivery{
		Acknowledger:    acker{},
		Headers:         amqp.Table{"tenant": "a", "n": int32(5), "list": list},
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

type acker struct{}

func (acker) Ack(uint64, bool) error        { return nil }
func (acker) Nack(uint64, bool, bool) error { return nil }
func (acker) Reject(uint64, bool) error     { return nil }

func TestPublishingKeepsTheDelivery(t *testing.T) {
	t.Parallel()
	d := full()
	got := wire.Publishing(&d, keepAll, map[string]string{"note": "1"})
	headers := full().Headers
	headers["note"] = "1"
	assert.Equal(t, amqp.Publishing{
		Headers:         headers,
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
	got.Headers["more"] = "x"
	assert.Equal(t, full(), d, "the delivery is changed")
}

func TestPublishingStripsHeadersOfTheBroker(t *testing.T) {
	t.Parallel()
	for stripped, headers := range map[bool][]string{
		true: {
			"x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
			"x-last-death-exchange", "x-last-death-queue", "x-last-death-reason",
			"x-delivery-count", "x-acquired-count", "CC", "BCC",
		},
		// To the broker, "cc" is another name.
		false: {"cc", "x-tenant", "x-match", "traceparent", ""},
	} {
		for _, header := range headers {
			t.Run(header, func(t *testing.T) {
				t.Parallel()
				arrived := func() amqp.Table { return amqp.Table{header: "v", "other": int64(1)} }
				d, want := amqp.Delivery{Headers: arrived()}, arrived()
				if stripped {
					delete(want, header)
				}
				assert.Equal(t, want, wire.Publishing(&d, keepAll, nil).Headers)
				assert.Equal(t, arrived(), d.Headers, "the delivery is changed")
			})
		}
	}
}

func TestPublishingDropsEarlierNotes(t *testing.T) {
	t.Parallel()
	arrived := func() amqp.Table {
		return amqp.Table{"our-a": "old", "our-b": int32(3), "theirs": "kept"}
	}
	d := amqp.Delivery{Headers: arrived()}
	drop := func(header string) bool { return strings.HasPrefix(header, "our-") }
	got := wire.Publishing(&d, drop, map[string]string{"our-b": "new", "our-c": "added"})
	assert.Equal(t, amqp.Table{"our-b": "new", "our-c": "added", "theirs": "kept"}, got.Headers)
	assert.Equal(t, arrived(), d.Headers, "the delivery is changed")
}

func TestPublishingOfADeliveryWithoutHeadersCanCarryMore(t *testing.T) {
	t.Parallel()
	got := wire.Publishing(&amqp.Delivery{}, keepAll, nil)
	assert.Empty(t, got.Headers)
	assert.NotPanics(t, func() { got.Headers["nonce"] = "1" })
	assert.Equal(t, amqp.Persistent, got.DeliveryMode)
}

// A republished message is the delivery as it arrived, except for the named headers and properties.
func FuzzPublishing(f *testing.F) {
	f.Add([]byte{}, "", "", "", []byte(nil), byte(0))
	f.Add([]byte{1, 1, 'a', 0, 1, 'b'}, "x-death", "CC", "\xff", []byte("body"), byte(1))
	f.Add([]byte{1, 1, 'a', 17, 2, 15, 15}, "BCC", "x-delivery-count", strings.Repeat("i", 255),
		[]byte{0}, byte(255))
	f.Fuzz(func(t *testing.T, data []byte, key, other, property string, body []byte, small byte) {
		g := &wiretest.Tables{Data: data}
		headers := g.Table(5)
		headers[key] = g.Value(5)
		headers[other] = property
		headers["note-old"] = "old"
		d := amqp.Delivery{
			Headers: headers, Body: body, DeliveryMode: small, Priority: small,
			MessageId: property, CorrelationId: property, UserId: property, Expiration: property,
			Type: property, Timestamp: time.Unix(int64(small), 0), Redelivered: small > 9,
		}
		before := wiretest.Dump(headers)
		drop := func(key string) bool { return strings.HasPrefix(key, "note-") }
		got := wire.Publishing(&d, drop, map[string]string{"note-new": "new"})
		if after := wiretest.Dump(headers); after != before {
			t.Errorf("input changed from %s to %s", before, after)
		}
		if err := got.Headers.Validate(); err != nil {
			t.Errorf("cannot be sent: %v", err)
		}
		if got.UserId != "" || got.Expiration != "" || got.DeliveryMode != amqp.Persistent {
			t.Errorf("user %q, expiration %q, mode %d", got.UserId, got.Expiration, got.DeliveryMode)
		}
		if string(got.Body) != string(body) || got.MessageId != property ||
			got.Priority != small || got.Type != property {
			t.Errorf("changed on the way: %+v", got)
		}
		for key, value := range got.Headers {
			if key != "note-new" && wiretest.Dump(value) != wiretest.Dump(headers[key]) {
				t.Errorf("header %q was %#v, is %#v", key, headers[key], value)
			}
		}
		for _, key := range []string{
			"x-death", "x-delivery-count", "x-acquired-count", "CC", "BCC", "note-old",
		} {
			if _, there := got.Headers[key]; there {
				t.Errorf("%s is republished", key)
			}
		}
		size := wire.PropertiesSize(&got)
		got.Headers["one-more"] = property
		more := wire.PropertiesSize(&got)
		if more < size+len(property) && headers["one-more"] == nil {
			t.Errorf("%d bytes, with one more header %d", size, more)
		}
	})
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

func TestCloneKeepsNilValues(t *testing.T) {
	t.Parallel()
	d := amqp.Delivery{Headers: amqp.Table{
		"t": amqp.Table(nil), "l": []any(nil), "b": []byte(nil), "n": nil,
	}}
	assert.Equal(t, d, wire.Clone(&d))
	assert.Nil(t, wire.Clone(&amqp.Delivery{}).Headers)
	assert.Nil(t, wire.Clone(&amqp.Delivery{}).Body)
}
