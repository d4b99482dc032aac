package publisher_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// BenchmarkPublish compares the publisher with the least code on amqp091-go that gives the same
// guarantee, with one exception: that code cannot tell which message a return belongs to.
func BenchmarkPublish(b *testing.B) {
	url := testbroker.URL(b)
	queue := declare(b, url, testbroker.Queue(b), amqp.Table{"x-queue-type": "quorum"})
	message := func() amqp.Publishing {
		return amqp.Publishing{
			Headers: amqp.Table{"k": "v"}, DeliveryMode: amqp.Persistent, Body: make([]byte, 1024),
		}
	}
	for _, callers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("callers=%d/raw", callers), func(b *testing.B) {
			ch := testbroker.Channel(b, url)
			require.NoError(b, ch.Confirm(false))
			returns := ch.NotifyReturn(make(chan amqp.Return, callers))
			run(b, url, queue, callers, func() error {
				confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, message())
				if err != nil {
					return err
				}
				if ok, err := confirm.WaitContext(b.Context()); err != nil || !ok {
					return errors.Join(errors.New("not confirmed"), err)
				}
				select {
				case <-returns:
					return errors.New("returned")
				default:
					return nil
				}
			})
		})
		b.Run(fmt.Sprintf("callers=%d/publisher", callers), func(b *testing.B) {
			p := open(b, url, long, nil)
			run(b, url, queue, callers, func() error { return p.Publish(b.Context(), "", queue, message()) })
		})
	}
}

// run publishes b.N times from a number of goroutines.
func run(b *testing.B, url, queue string, callers int, publish func() error) {
	b.Helper()
	_, err := testbroker.Channel(b, url).QueuePurge(queue, false)
	require.NoError(b, err)
	require.NoError(b, publish(), "before the clock runs")
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ReportAllocs()
	b.ResetTimer()
	var wait sync.WaitGroup
	for range callers {
		wait.Go(func() {
			for left.Add(-1) >= 0 {
				if err := publish(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wait.Wait()
}
