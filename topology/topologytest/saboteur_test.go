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

	"github.com/millpond-go/millpond/internal/experiment"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
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
				// The broker notes the wait queue, as it does for a message that it lets expire.
				d.Headers["x-death"] = []any{amqp.Table{
					"count": int64(1), "queue": q.Name, "exchange": "", "reason": "expired",
				}}
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

// Given messages that wait, when they return early, late, twice, not at all, changed, or without
// the notes of their failures, then the check for it says so. When they return in time, none does.
func TestMessagesThatReturnWrongAreFound(t *testing.T) {
	t.Parallel()
	var passed atomic.Int32
	for name, c := range map[string]struct {
		meddle func(back returning, msg amqp.Publishing)
		found  []string
	}{
		"in time": {func(back returning, msg amqp.Publishing) { back(0, msg) }, nil},
		"early": {
			func(back returning, msg amqp.Publishing) { back(-time.Hour, msg) },
			[]string{"EachDelayIsKept", "SnoozedMessagesComeBackInSeconds"},
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
		"with a header of another type": {
			func(back returning, msg amqp.Publishing) {
				msg.Headers = maps.Clone(msg.Headers)
				msg.Headers["int16"] = int64(-3)
				back(0, msg)
			},
			[]string{"MessagesArriveAsTheyWereSent"},
		},
		"without the notes": {
			func(back returning, msg amqp.Publishing) {
				msg.Headers = maps.Clone(msg.Headers)
				maps.DeleteFunc(msg.Headers, func(key string, _ any) bool {
					return strings.HasPrefix(key, "millpond-")
				})
				back(0, msg)
			},
			[]string{"AttemptsAreCountedUntilTheDeadLetter"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testbroker.URL(t)
			checks, patience := brokerChecks[:8], time.Minute
			if c.found != nil {
				checks, patience = named(t, c.found...), 3*time.Second
			}
			var found map[string]string
			// On a busy machine the way of a message that is early may take its delay.
			for try := 0; try < 3 && len(found) < len(c.found) || try == 0; try++ {
				s := &saboteur{Strategy: topology.PerQueue{}, meddle: c.meddle}
				config := Config{Strategy: s, URL: url, Patience: patience}
				found = failures(t, config, func() { s.work(t, url) }, checks...)
			}
			for _, name := range c.found {
				require.Contains(t, found, name)
			}
			if c.found == nil {
				require.Empty(t, found)
			}
		})
	}
}

// Each change of a message is named.
func TestChangesOfAMessageAreFound(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*amqp.Delivery){
		"":                                  func(d *amqp.Delivery) { d.Headers["x-death"] = "more" },
		"no header nil":                     func(d *amqp.Delivery) { delete(d.Headers, "nil") },
		"-3 (int64) in place of -3 (int16)": func(d *amqp.Delivery) { d.Headers["int16"] = int64(-3) },
		"the header text":                   func(d *amqp.Delivery) { d.Headers["text"] = "" },
		"the header time":                   func(d *amqp.Delivery) { d.Headers["time"] = time.Now() },
		"the body":                          func(d *amqp.Delivery) { d.Body = []byte("x") },
		"the content type":                  func(d *amqp.Delivery) { d.ContentType = "" },
		"the content encoding":              func(d *amqp.Delivery) { d.ContentEncoding = "" },
		"the correlation id":                func(d *amqp.Delivery) { d.CorrelationId = "" },
		"the message id":                    func(d *amqp.Delivery) { d.MessageId = "" },
		"the priority":                      func(d *amqp.Delivery) { d.Priority = 0 },
		"the type":                          func(d *amqp.Delivery) { d.Type = "" },
		"the app id":                        func(d *amqp.Delivery) { d.AppId = "" },
		"the reply-to":                      func(d *amqp.Delivery) { d.ReplyTo = "" },
		"the timestamp":                     func(d *amqp.Delivery) { d.Timestamp = time.Time{} },
		"the delivery mode":                 func(d *amqp.Delivery) { d.DeliveryMode = amqp.Transient },
	} {
		sent := experiment.Typed("1")
		got := amqp.Delivery{
			Headers: maps.Clone(sent.Headers), ContentType: sent.ContentType,
			ContentEncoding: sent.ContentEncoding, DeliveryMode: sent.DeliveryMode, Priority: sent.Priority,
			CorrelationId: sent.CorrelationId, ReplyTo: sent.ReplyTo, MessageId: sent.MessageId,
			Timestamp: sent.Timestamp, Type: sent.Type, AppId: sent.AppId, Body: sent.Body,
		}
		change(&got)
		found := experiment.Differences(sent, got)
		if want == "" {
			require.Empty(t, found)
			continue
		}
		require.Len(t, found, 1, want)
		require.Contains(t, found[0], want)
	}
}
