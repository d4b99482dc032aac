package consumer

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/internal/wire/wiretest"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/wait"
)

// hostileNotes are headers that a producer may write, a line each.
var hostileNotes = []string{
	"",
	"millpond-queue=orders\nmillpond-failures=3\nmillpond-delay=5s\nmillpond-class=retryable",
	"millpond-queue=orders\nmillpond-failures=-1\nmillpond-interruptions=-9223372036854775808",
	"millpond-queue=orders\nmillpond-failures=99999999999999999999\n" +
		"millpond-interruptions=9223372036854775807",
	"millpond-queue=orders\nmillpond-failures= 1\nmillpond-failures=0x10",
	"millpond-queue=orders\nmillpond-origin-exchange=amq.direct\nmillpond-origin-routing-key=payroll",
	"millpond-queue=orders\nmillpond-origin-exchange=\xff\xfe\nmillpond-origin-routing-key=" +
		strings.Repeat("k", 100_000),
	"millpond-queue=orders\nmillpond-deadline=0001-01-01T00:00:00Z",
	"millpond-queue=orders\nmillpond-deadline=9999-12-31T23:59:59.999999999-23:59",
	"millpond-queue=orders\nmillpond-not-before=9999-12-31T23:59:59Z\nmillpond-delay=87600h\n" +
		"millpond-set-aside=2562047h47m16.854775807s",
	"millpond-queue=orders\nmillpond-not-before=2026-01-01T00:00:00Z\nmillpond-delay=-1h",
	"millpond-queue=orders\nmillpond-priority=256",
	"millpond-queue=orders\nmillpond-priority=9",
	"millpond-queue=orders\nmillpond-publish=" + strings.Repeat("n", 255),
	"millpond-queue=orders\nmillpond-history=" + strings.Repeat("[", 20_000),
	"millpond-queue=orders\n" +
		`millpond-history=[{"attempt":-1,"at":"9999-12-31T23:59:59-23:59","delay":"x","error":"` +
		strings.Repeat(`\u0000`, 2_000) + `"}]`,
	"millpond-dead-queue=orders\nmillpond-dead-history=[null]\nmillpond-origin-routing-key=payroll\n" +
		"millpond-dead-failures=7",
	"millpond-queue=payroll\nmillpond-failures=3\nmillpond-origin-routing-key=payroll",
	"x-death=no table\nx-first-death-queue=payroll\nx-last-death-queue=payroll\n" +
		"x-delivery-count=5\nx-acquired-count=5",
	"CC=payroll\nBCC=payroll",
	"_watermill_message_uuid=\xff\ncorrelation_id=" + strings.Repeat("c", 100_000),
	strings.Repeat("k", 255) + "=" + strings.Repeat("v", 1000) + "\n\xff\xfe=\xff\n=",
}

// testWaits are wait queues of one second and one minute. Without a Via they are shared by
// all queues.
func testWaits(via Via) Waits {
	routes := []wait.Route{
		{Exchange: "millpond.wait.1s", RoutingKey: "orders", Delay: time.Second, Hops: 1},
		{Exchange: "millpond.wait.1m", RoutingKey: "orders", Delay: time.Minute, Hops: 1},
	}
	return Waits{
		Route: func(r wait.Retry) (wait.Route, error) {
			if r.Delay <= time.Second {
				return routes[0], nil
			}
			return routes[1], nil
		},
		Given: func(asked time.Duration) time.Duration { return max(time.Second, asked) },
		Dead:  wait.Route{RoutingKey: "orders.dlq"}, Via: via, KeyKept: []string{"millpond.return"},
		SortsPriorities: true,
	}
}

// fuzzedDelivery is a delivery of queue "orders" to a subscription that has everything but a
// connection.
func fuzzedDelivery(t *testing.T, waits Waits, raw amqp.Delivery) *delivery {
	sub := New(t.Context(), t.Context(), Config{
		Group: &Group{}, Topic: "orders", Queue: "orders", Frame: 131072, Logger: watermill.NopLogger{},
		Decode: wamqp.DefaultMarshaler{}.Unmarshal, Waits: waits,
	})
	t.Cleanup(sub.Cancel)
	d, end := sub.newDelivery(Arrival{
		Raw: raw, At: time.Now(), On: &Channel{ctx: t.Context()}, Step: asArrived{},
	})
	t.Cleanup(end)
	return d
}

// Given a delivery with any headers and properties, then it is decoded or refused without a
// panic, and it is left as it arrived. A retry or a dead letter goes where the routes lead, can be
// sent, and has no header that would steer the broker.
func FuzzDelivery(f *testing.F) {
	for i, notes := range hostileNotes {
		f.Add([]byte{}, notes, "", "orders", "", []byte("body"), uint16(0), uint8(0), i%2 == 0)
	}
	f.Add([]byte{1, 7, 'x', '-', 'd', 'e', 'a', 't', 'h', 17, 1, 0, 1, 'a'}, "", "amq.topic", "a.b.c",
		"60000", []byte(nil), uint16(0), uint8(0), true)
	f.Add([]byte{1, 2, 'C', 'C', 17, 1, 0, 1, 'a'}, "", "", "", "-1", []byte{0xff}, uint16(0),
		uint8(32), false)
	f.Add([]byte{}, hostileNotes[1], "", "", "99999999999999999999", make([]byte, 1<<20),
		uint16(10_000), uint8(0), false)
	f.Add([]byte{}, hostileNotes[6], "", "", "0", []byte{}, uint16(8185), uint8(255), true)
	for seed := range uint64(8) {
		f.Add(wiretest.Random(seed, 400).Data, hostileNotes[seed], strings.Repeat("e", 255), "\xff", "1",
			[]byte{}, uint16(0), uint8(0), true)
	}
	f.Fuzz(func(t *testing.T, table []byte, notes, exchange, key, expiration string, body []byte,
		many uint16, deep uint8, flag bool,
	) {
		if len(exchange) > 255 || len(key) > 255 || len(expiration) > 255 {
			t.Skip("AMQP cannot carry it")
		}
		g := &wiretest.Tables{Data: table}
		headers := g.Table(5)
		for i := range many % 12_000 {
			headers[fmt.Sprint("h", i)] = nil
		}
		var nested any
		for range deep {
			nested = []any{nested}
		}
		headers["nested"] = nested
		for line := range strings.Lines(notes) {
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			if len(name) <= 255 {
				headers[name] = value
			}
		}
		if flag {
			headers["x-delivery-count"] = g.Value(0)
		}
		raw := amqp.Delivery{
			Headers: headers, Body: body, Exchange: exchange, RoutingKey: key, Expiration: expiration,
			Redelivered: flag,
			MessageId:   key, UserId: exchange, Timestamp: time.Unix(int64(g.Uint64()), 0),
			DeliveryMode: g.Byte(), Priority: g.Byte(),
		}
		before := wiretest.Dump(headers)
		waits := testWaits(Via{})
		if !flag {
			waits.KeyKept = nil
		}
		d := fuzzedDelivery(t, waits, raw)

		judge(&d.raw, d.State.Interruptions, &Limits{Deliveries: 20}, false)
		if left := d.remaining(); left < 0 || left > max(d.State.Delay, d.State.Snoozed) ||
			left > backoff.MaxDelay {
			t.Errorf("must wait for %v: %+v", left, d.State)
		}
		if msg, err := d.decode(); err == nil && string(msg.Payload) != string(body) {
			t.Errorf("payload %q of body %q", msg.Payload, body)
		}

		for _, delay := range []time.Duration{-1, time.Second, time.Hour, backoff.MaxDelay} {
			notes := d.State
			route, msg, err := d.waiting(time.Now(), delay, &notes)
			if err != nil {
				continue // dead-lettered below
			}
			if route.Exchange != "millpond.wait.1s" && route.Exchange != "millpond.wait.1m" ||
				route.RoutingKey != "orders" {
				t.Errorf("waits at %+v", route)
			}
			checkCopy(t, d, *msg, waitingRoom(131072, &route), keys.IsLive)
			noted := amqp.Delivery{Headers: msg.Headers, Priority: msg.Priority}
			if got := wire.Priority(&noted, keys.Priority); msg.Priority > NormalPriority ||
				got != d.raw.Priority {
				t.Errorf("waits with priority %d, noted %d, of %d", msg.Priority, got, d.raw.Priority)
			}
		}
		dead := d.State
		dead.Reason, dead.DeadAt, dead.Error = header.ReasonPermanent, time.Now(), key
		letter, _ := d.dead("subscriber", dead)
		checkCopy(t, d, *letter, room{bytes: 1 << 30, headers: 1 << 30}, keys.IsState)
		if after := wiretest.Dump(headers); after != before {
			t.Errorf("the delivery was changed from %s to %s", before, after)
		}
	})
}

// checkCopy checks the copy of a delivery that is published.
func checkCopy(t *testing.T, d *delivery, msg amqp.Publishing, r room, own func(string) bool) {
	t.Helper()
	assert.NoError(t, r.check(&msg))
	assert.NoError(t, msg.Headers.Validate(), "cannot be sent")
	if msg.UserId != "" || msg.Expiration != "" || msg.DeliveryMode != amqp.Persistent ||
		string(msg.Body) != string(d.raw.Body) {
		t.Errorf("changed on the way: %+v", msg)
	}
	for _, key := range []string{
		"x-death", "x-first-death-queue", "x-last-death-queue",
		"x-delivery-count", "x-acquired-count", "CC", "BCC",
	} {
		if _, there := msg.Headers[key]; there {
			t.Errorf("%s is republished", key)
		}
	}
	for key, value := range d.raw.Headers {
		switch got, there := msg.Headers[key]; {
		case !there && (own(key) || len(wire.Publishing(&amqp.Delivery{Headers: amqp.Table{key: 1}},
			own, nil).Headers) == 0):
		case strings.HasSuffix(key, "_poisoned"):
		case !own(key) && wiretest.Dump(got) != wiretest.Dump(value):
			t.Errorf("header %q was %#v, is %#v", key, value, got)
		}
	}
	total := 0
	for key, value := range maps.All(msg.Headers) {
		if text, ok := value.(string); ok && own(key) {
			total += len(key) + len(text)
		}
	}
	if most := keys.MaxErrorBytes + keys.MaxHistoryBytes + 2048; total > most {
		t.Errorf("the headers of the retry take %d bytes, at most %d are promised", total, most)
	}
}
