package topology_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
)

// lane is a queue whose messages all fail, and its consumer.
type lane struct {
	rig    *rig.Service
	gate   sync.RWMutex // held while the queue is filled
	left   atomic.Int64
	ended  chan struct{} // the last of a batch is confirmed in the wait queue
	failed int
	took   time.Duration
}

func newLane(b testing.TB, inFlight int, configs ...func(*wamqp.Config)) *lane {
	b.Helper()
	l := &lane{ended: make(chan struct{}, 1)}
	count := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			l.gate.RLock()
			defer l.gate.RUnlock()
			produced, err := h(msg)
			if err != nil {
				b.Error(err)
			}
			if l.left.Add(-1) == 0 {
				l.ended <- struct{}{}
			}
			return produced, err
		}
	}
	l.rig = rig.Start(b, rig.Config{
		Policy: backoff.List{time.Hour},
		Configure: func(cfg *wamqp.Config) {
			rig.Prefetch(64)(cfg)
			for _, change := range configs {
				change(cfg)
			}
		},
		SubscriberOptions: []topology.SubscriberOption{topology.WithConcurrency(inFlight)},
		Outer:             []message.HandlerMiddleware{count},
		Handler:           func(*message.Message) ([]*message.Message, error) { return nil, rig.ErrFailed },
	})
	return l
}

// load puts n messages into the queue, whose handler waits.
func (l *lane) load(b testing.TB, n int) {
	b.Helper()
	l.gate.Lock()
	l.left.Store(int64(n))
	rig.Fill(b, l.rig.URL, l.rig.Queue, n)
}

// fail lets them fail, and returns when all wait.
func (l *lane) fail(b testing.TB) {
	b.Helper()
	l.gate.Unlock()
	select {
	case <-l.ended:
	case <-time.After(rig.Patience):
		b.Fatalf("%d messages have not failed", l.left.Load())
	}
}

// batch lets n messages fail, the clock running from when all are in the queue
// until all wait.
func (l *lane) batch(b testing.TB, n int) {
	b.Helper()
	l.load(b, n)
	begun := time.Now()
	l.fail(b)
	l.took += time.Since(begun)
	l.failed += n
}

func (l *lane) rate() float64 { return float64(l.failed) / l.took.Seconds() }

// BenchmarkFailingPath is how many messages a second one handler can let fail,
// each confirmed in a quorum wait queue and acked, with 1, 8 and 64 in flight. The
// batches alternate, so that what else the machine does meets all of them: the
// ratios say more than the rates.
func BenchmarkFailingPath(b *testing.B) {
	const batch = 500
	concurrency := []int{1, 8, 64}
	lanes := make([]*lane, len(concurrency))
	for i, n := range concurrency {
		lanes[i] = newLane(b, n)
		lanes[i].batch(b, batch)
		lanes[i].failed, lanes[i].took = 0, 0
	}
	for b.Loop() {
		for _, l := range lanes {
			l.batch(b, batch)
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, l := range lanes {
		b.ReportMetric(l.rate(), fmt.Sprintf("msg/s-%d", concurrency[i]))
	}
	b.ReportMetric(lanes[1].rate()/lanes[0].rate(), "ratio-8/1")
	b.ReportMetric(lanes[2].rate()/lanes[1].rate(), "ratio-64/8")
}
