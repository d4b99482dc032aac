package testbroker

import (
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Dial opens a plain connection that is closed at the end of the test.
func Dial(tb testing.TB, url string) *amqp.Connection {
	tb.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		tb.Fatalf("dial the broker: %v", err)
	}
	// The broker may be frozen by now.
	tb.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	return conn
}

// Channel opens a channel on a connection of its own, both closed at the end of the test.
func Channel(tb testing.TB, url string) *amqp.Channel {
	tb.Helper()
	ch, err := Dial(tb, url).Channel()
	if err != nil {
		tb.Fatalf("open a channel: %v", err)
	}
	return ch
}

// Queue returns a queue name for this test alone, millpond-test-<test>-<random>. It declares
// nothing. At the end of the test the queue is deleted from the shared broker, together with its
// DLQ and its wait queues of the usual delays. AMQP cannot list queues: a test that creates other
// ones names them to [Delete], for the sake of a broker behind AMQP_URL. A node of the bench is
// thrown away as a whole.
func Queue(tb testing.TB) string {
	tb.Helper()
	name := "millpond-test-" + shortName(tb.Name()) + "-" + randomHex(4)
	Delete(tb, append([]string{name, name + ".dlq"}, usualWaitQueues(name)...)...)
	return name
}

// Delete deletes queues of the shared broker at the end of the test. Missing ones are no error.
func Delete(tb testing.TB, queues ...string) {
	tb.Helper()
	tb.Cleanup(func() {
		url, ok := sharedURL()
		if !ok {
			return
		}
		if err := deleteQueues(url, queues); err != nil {
			tb.Logf("delete the test's queues: %v", err)
		}
	})
}

func deleteQueues(url string, queues []string) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	for _, queue := range queues {
		if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
			return err
		}
	}
	return nil
}

func usualWaitQueues(queue string) []string {
	delays := []string{
		"50ms", "100ms", "200ms", "250ms", "300ms", "500ms", "1s", "2s", "3s", "4s", "5s", "8s", "10s",
		"15s", "16s", "30s",
		"50s", "1m", "2m", "5m", "8m20s", "10m", "1h",
	}
	names := make([]string, 0, len(delays))
	for _, d := range delays {
		names = append(names, queue+".wait."+d)
	}
	return names
}

// shortName keeps a test's name readable and short enough for the suffixes that are added to a
// queue's name.
func shortName(test string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '-':
			return r
		case r == '/' || r == '_':
			return '-'
		default:
			return -1
		}
	}, strings.TrimPrefix(test, "Test"))
	return clean[:min(len(clean), 60)]
}

// Depth returns how many messages of the queue are ready for delivery, or -1 if there is no such
// queue. Messages that are unacked, or held back for at-least-once dead-lettering, are not counted.
func Depth(tb testing.TB, url, queue string) int {
	tb.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		tb.Fatalf("depth of queue %q: %v", queue, err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		tb.Fatalf("depth of queue %q: %v", queue, err)
	}
	q, err := ch.QueueDeclarePassive(queue, false, false, false, false, nil)
	var refused *amqp.Error
	switch {
	case err == nil:
		return q.Messages
	case errors.As(err, &refused) && refused.Code == amqp.NotFound:
		return -1
	default:
		tb.Fatalf("depth of queue %q: %v", queue, err)
		return -1
	}
}
