package e2e_test

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology"
)

// oneActive are the arguments of a queue that is handled in order.
var oneActive = amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true}

// keyOf is the key of a message in these tests: the body up to the colon.
func keyOf(msg *message.Message) string {
	key, _, _ := strings.Cut(string(msg.Payload), ":")
	return key
}

// bodies are those of messages, in the order of their handling.
type bodies struct {
	mu   sync.Mutex
	done []string
}

func (j *bodies) add(body string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.done = append(j.done, body)
}

// of returns the bodies of a key, in the order in which they were handled.
func (j *bodies) of(key string) (of []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, body := range j.done {
		if strings.HasPrefix(body, key+":") {
			of = append(of, body)
		}
	}
	return of
}

func (j *bodies) len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.done)
}

// Given messages of two keys, when the first message of one fails until the messages of the other
// are handled, then those are handled, and its own later messages wait behind it.
func TestAFailedMessageIsNotOvertakenByItsKey(t *testing.T) {
	t.Parallel()
	var handled bodies
	r := rig.Start(t, rig.Config{
		Strategy:          topology.InOrder{KeyBy: keyOf},
		Configure:         rig.WithQueue(oneActive),
		SubscriberOptions: []topology.SubscriberOption{topology.WithConcurrency(8)},
		Policy:            backoff.Constant{Interval: 300 * time.Millisecond, Retries: 50},
		Handle: func(msg *message.Message) error {
			body := string(msg.Payload)
			if body == "a:0" && len(handled.of("b")) < 20 {
				return errors.New("not yet")
			}
			handled.add(body)
			return nil
		},
	})
	var want []string
	for i := range 20 {
		for _, key := range []string{"a", "b"} {
			r.Publish(amqp.Publishing{Body: []byte(key + ":" + strconv.Itoa(i))})
		}
		want = append(want, "a:"+strconv.Itoa(i))
	}
	rig.WaitFor(t, "all messages are handled", func() bool { return handled.len() == 40 })
	require.Equal(t, want, handled.of("a"))
	r.RequireNothingLeft(0)
}
