package e2e_test

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
)

// thirdTime are the notes of a message that has failed twice.
func thirdTime() header.RetryState {
	at := time.Date(2026, 2, 3, 4, 5, 6, 789_000_000, time.UTC)
	n := header.RetryState{
		Failures: 2, FirstSeen: at, FirstFailure: at, WaitingSince: at, Delay: 10 * time.Second,
		OriginExchange: "shop", OriginRoutingKey: "orders.eu", Error: "the shop is closed", Class: header.ClassRetryable,
	}
	for attempt := range 2 {
		n.History = append(n.History, header.AttemptError{
			Attempt: attempt + 1, At: at, Handler: "billing", Class: header.ClassRetryable, Error: n.Error, Delay: "10s",
		})
	}
	return n
}

// tenHeaders is a delivery with ten headers of its producer.
var tenHeaders = func() *amqp.Delivery {
	headers := amqp.Table{}
	for i := range 10 {
		headers[fmt.Sprint("key-", i)] = "value"
	}
	return &amqp.Delivery{Headers: headers, MessageId: "id", Body: make([]byte, 1024)}
}()

var codec = map[string]struct {
	run  func()
	most float64 // allocations
}{
	"notes out": {func() { thirdNotes.Headers("orders") }, 22},
	"notes in": {func() {
		header.Parse("orders", func(key string) (string, bool) { value, ok := thirdHeaders[key]; return value, ok })
	}, 21},
	"message out": {func() { wire.Publishing(tenHeaders, func(string) bool { return false }, thirdHeaders) }, 15},
	"message in":  {func() { wire.TextHeaders(tenHeaders.Headers) }, 14},
}

var (
	thirdNotes   = thirdTime()
	thirdHeaders = thirdNotes.Headers("orders")
)

// Counted and not timed: whoever makes the codec dearer should know.
func TestAllocationsOfTheCodec(t *testing.T) {
	for name, c := range codec {
		allocs := testing.AllocsPerRun(100, c.run)
		t.Logf("%s: %v allocations", name, allocs)
		if allocs > c.most {
			t.Errorf("%s: %v allocations, at most %v expected", name, allocs, c.most)
		}
	}
}

func BenchmarkCodec(b *testing.B) {
	for name, c := range codec {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.run()
			}
		})
	}
}
