package publisher_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

const (
	// patience bounds every wait on a condition.
	patience = 60 * time.Second
	// slack is what a busy machine may add to a bound.
	slack = 10 * time.Second
	// long is a timeout that no test waits for.
	long  = 2 * time.Minute
	nonce = "test-nonce"
)

// rig is a publisher with a connection of its own.
type rig struct {
	*publisher.Publisher
	recorder *recorder
}

// open returns a publisher that is closed at the end of the test.
func open(tb testing.TB, url string, timeout time.Duration) rig {
	tb.Helper()
	r := rig{recorder: &recorder{}}
	r.Publisher = openWith(tb, url, timeout, &amqp.Config{Dial: r.recorder.dial})
	return r
}

func openWith(tb testing.TB, url string, timeout time.Duration, config *amqp.Config) *publisher.Publisher {
	tb.Helper()
	l, err := link.Open(tb.Context(), link.Config{
		URL: url, Name: "millpond test", AMQP: config,
		ConnectTimeout: 5 * time.Second, WriteTimeout: long,
		Reconnect: link.Backoff{Initial: 20 * time.Millisecond, Max: 200 * time.Millisecond, Multiplier: 2},
		Logger:    watermill.NopLogger{},
	})
	require.NoError(tb, err)
	p := publisher.New(l, publisher.Config{Timeout: timeout, NonceHeader: nonce})
	tb.Cleanup(p.Close)
	return p
}

// say publishes a body to a queue.
func (r rig) say(ctx context.Context, queue, body string) error {
	return r.Publish(ctx, "", queue, amqp.Publishing{
		Headers: amqp.Table{}, DeliveryMode: amqp.Persistent, Body: []byte(body),
	})
}

// recovers waits until publishing works, without any help.
func (r rig) recovers(t *testing.T, queue string) {
	t.Helper()
	var err error
	testbroker.WaitFor(t, "publishing to work again", patience, func() bool {
		err = r.say(t.Context(), queue, "again")
		return err == nil
	})
}

// declare declares a queue that is deleted at the end of the test.
func declare(tb testing.TB, url string, args amqp.Table) string {
	tb.Helper()
	queue := testbroker.Queue(tb)
	redeclare(tb, url, queue, args)
	return queue
}

func redeclare(tb testing.TB, url, queue string, args amqp.Table) {
	tb.Helper()
	_, err := testbroker.Channel(tb, url).QueueDeclare(queue, true, false, false, false, args)
	require.NoError(tb, err)
}

// bodies takes all messages out of a queue and counts them by body.
func bodies(t *testing.T, url, queue string) map[string]int {
	t.Helper()
	ch := testbroker.Channel(t, url)
	found := make(map[string]int)
	for {
		msg, ok, err := ch.Get(queue, true)
		require.NoError(t, err)
		if !ok {
			return found
		}
		found[string(msg.Body)]++
	}
}

// within fails the test where f takes longer than limit and slack.
func within(t *testing.T, limit time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit + slack):
		t.Fatalf("%s takes longer than %v", what, limit+slack)
	}
}

// call is what became of one Publish.
type call struct {
	body string
	err  error
	took time.Duration
}

// errEnough ends a caller before it has made all its calls.
var errEnough = errors.New("enough")

// callers publishes from n goroutines until each has made its calls, and
// returns what became of all of them.
func callers(n, each int, publish func(caller int, body string) error) []call {
	var (
		mu    sync.Mutex
		calls []call
		wait  sync.WaitGroup
	)
	for caller := range n {
		wait.Go(func() {
			for i := range each {
				body := fmt.Sprintf("%d/%d", caller, i)
				begun := time.Now()
				err := publish(caller, body)
				if errors.Is(err, errEnough) {
					return
				}
				done := call{body, err, time.Since(begun)}
				mu.Lock()
				calls = append(calls, done)
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	return calls
}

// noFalseSuccess fails the test where a call returned nil and its message is
// not in the queue. It returns how many calls returned nil.
func noFalseSuccess(t *testing.T, calls []call, url, queue string) (succeeded int) {
	t.Helper()
	found := bodies(t, url, queue)
	for _, c := range calls {
		if c.err != nil {
			continue
		}
		succeeded++
		if found[c.body] != 1 {
			t.Errorf("message %s returned nil and is in the queue %d times", c.body, found[c.body])
		}
	}
	return succeeded
}

// place is the connection and the channel of a basic.publish.
type place struct{ conn, channel int }

// recorder notes where a client publishes.
type recorder struct {
	mu     sync.Mutex
	conns  int
	places []place
}

func (r *recorder) dial(network, address string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, 5*time.Second)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns++
	return &recorded{Conn: conn, recorder: r, number: r.conns, skip: 8}, nil // "AMQP" 0 0 9 1
}

// published returns the places of all publishes so far.
func (r *recorder) published() []place {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]place(nil), r.places...)
}

// connections is how many connections were made so far.
func (r *recorder) connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conns
}

// recorded looks at the beginning of every frame that is written.
type recorded struct {
	net.Conn
	recorder *recorder
	number   int
	head     []byte
	skip     int // bytes that are of no interest
}

const headOfPublish = 11 // type, channel, size, class, method

func (c *recorded) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.recorder.mu.Lock()
	defer c.recorder.mu.Unlock()
	for rest := p[:n]; len(rest) > 0; {
		if c.skip > 0 {
			step := min(c.skip, len(rest))
			c.skip, rest = c.skip-step, rest[step:]
			continue
		}
		c.head, rest = append(c.head, rest[0]), rest[1:]
		if len(c.head) < 7 {
			continue
		}
		size := int(binary.BigEndian.Uint32(c.head[3:]))
		method := c.head[0] == 1 && size >= 4
		if method && len(c.head) < headOfPublish {
			continue
		}
		if method && binary.BigEndian.Uint32(c.head[7:]) == 60<<16|40 {
			c.recorder.places = append(c.recorder.places, place{c.number, int(binary.BigEndian.Uint16(c.head[1:]))})
		}
		c.skip = 7 + size + 1 - len(c.head)
		c.head = c.head[:0]
	}
	return n, err
}
