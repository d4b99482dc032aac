package topologytest

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// saboteur takes the messages out of the wait queues of the suite's queue a, and treats them as a
// broken broker could.
type saboteur struct {
	topology.Strategy
	meddle func(back returning, msg amqp.Publishing)

	once sync.Once
	plan topology.Plan // of the queue a
}

// returning brings a message back to its queue, so much later than it is due.
type returning func(late time.Duration, msg amqp.Publishing)

func (s *saboteur) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	plan, err := s.Strategy.Plan(queue, delays)
	if strings.HasSuffix(queue, ".a") {
		s.once.Do(func() { s.plan = plan })
	}
	return plan, err
}

// work begins when the wait queues are there, and ends with the test.
func (s *saboteur) work(t *testing.T, url string) {
	t.Helper()
	conn := testbroker.Dial(t, url)
	var running sync.WaitGroup
	t.Cleanup(func() {
		conn.Close()
		running.Wait()
	})
	for _, q := range s.plan.Queues {
		if q.Delay == 0 {
			continue
		}
		ch, err := conn.Channel()
		require.NoError(t, err)
		letters, err := ch.Consume(q.Name, "", true, false, false, false, nil)
		require.NoError(t, err)
		back := func(after time.Duration, msg amqp.Publishing) {
			running.Go(func() {
				time.Sleep(max(0, q.Delay+after))
				_ = ch.Publish("", s.plan.Queue, false, false, msg) // The connection may have ended.
			})
		}
		running.Go(func() {
			for d := range letters {
				s.meddle(back, amqp.Publishing{
					Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding,
					DeliveryMode: d.DeliveryMode, Priority: d.Priority, CorrelationId: d.CorrelationId,
					ReplyTo: d.ReplyTo, MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type,
					AppId: d.AppId, Body: d.Body,
				})
			}
		})
	}
}

// Given messages that wait, when they return early, twice, not at all, changed, or without the
// notes of their failures, then the check for it says so. When they return in time, none does.
func TestMessagesThatReturnWrongAreFound(t *testing.T) {
	t.Parallel()
	without := func(drop func(key string) bool) func(returning, amqp.Publishing) {
		return func(back returning, msg amqp.Publishing) {
			msg.Headers = maps.Clone(msg.Headers)
			maps.DeleteFunc(msg.Headers, func(key string, _ any) bool { return drop(key) })
			back(0, msg)
		}
	}
	var passed atomic.Int32
	for name, c := range map[string]struct {
		meddle func(back returning, msg amqp.Publishing)
		found  []string
	}{
		"in time": {func(back returning, msg amqp.Publishing) { back(0, msg) }, nil},
		"early": {
			func(back returning, msg amqp.Publishing) { back(-time.Hour, msg) },
			[]string{
				"EachDelayIsKept", "DelaysThatThePolicyDoesNotListAreKept", "DelayedMessagesArriveWhenDue",
				"SnoozedMessagesComeBackInSeconds",
			},
		},
		"late": {
			func(back returning, msg amqp.Publishing) { back(5*time.Second, msg) },
			[]string{"DelayedMessagesArriveWhenDue"},
		},
		"one of ten is lost": {
			func(back returning, msg amqp.Publishing) {
				if passed.Add(1)%10 != 0 {
					back(0, msg)
				}
			},
			[]string{"AHundredAtOnceArriveOnce"},
		},
		"twice": {
			func(back returning, msg amqp.Publishing) {
				back(0, msg)
				back(0, msg)
			},
			[]string{"AHundredAtOnceArriveOnce"},
		},
		"without a header": {
			without(func(key string) bool { return key == "nil" }), []string{"MessagesArriveAsTheyWereSent"},
		},
		"with a header of another type": {
			func(back returning, msg amqp.Publishing) {
				msg.Headers = maps.Clone(msg.Headers)
				msg.Headers["int16"] = int64(-3)
				back(0, msg)
			},
			[]string{"MessagesArriveAsTheyWereSent"},
		},
		"without a property": {
			func(back returning, msg amqp.Publishing) {
				msg.CorrelationId = ""
				back(0, msg)
			},
			[]string{"MessagesArriveAsTheyWereSent"},
		},
		"without the notes": {
			without(func(key string) bool { return strings.HasPrefix(key, "millpond-") }),
			[]string{"AttemptsAreCountedUntilTheDeadLetter"},
		},
		"without the history": {
			without(func(key string) bool { return key == header.History }),
			[]string{"AttemptsAreCountedUntilTheDeadLetter"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testbroker.URL(t)
			s := &saboteur{Strategy: topology.PerQueue{}, meddle: c.meddle}
			checks, patience := brokerChecks, time.Minute
			if c.found != nil {
				checks, patience = named(t, c.found...), 3*time.Second
			}
			config := Config{Strategy: s, URL: url, Patience: patience}
			found := failures(t, config, func() { s.work(t, url) }, checks...)
			for _, name := range c.found {
				require.Contains(t, found, name)
			}
			if c.found == nil {
				require.Empty(t, found)
			}
		})
	}
}
