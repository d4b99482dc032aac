package testbroker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/testing/memnet"
)

const noBrokerWanted = "needs a broker, and MILLPOND_NO_BROKER is set: make test"

// shared is the node of this test binary, if one was started.
var shared struct {
	sync.Mutex
	node *Node
	err  error
}

// URL returns the address of the broker that all tests share: AMQP_URL if it is set, else a node
// that is started once for this test binary. A test must not break it, and uses only names that no
// other test uses, see [Queue]. Without a broker the test is skipped and names the missing package.
func URL(tb testing.TB) string {
	tb.Helper()
	if os.Getenv("MILLPOND_NO_BROKER") != "" {
		tb.Skip(noBrokerWanted)
	}
	if url := os.Getenv("AMQP_URL"); url != "" {
		return url
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.node == nil && shared.err == nil {
		shared.node, shared.err = Start(context.Background())
	}
	switch err := shared.err; {
	case err == nil:
		return shared.node.URL()
	case errors.Is(err, ErrNoBroker) && os.Getenv("MILLPOND_REQUIRE_BROKER") == "":
		tb.Skipf("needs a broker, in AMQP_URL or by make test: %v", err)
	default:
		tb.Fatalf("start the shared broker: %v", err)
	}
	return ""
}

// Main runs the tests of a package, then ends the shared node if there is one, then calls the
// functions in after, and exits. An error of after fails the package:
//
//	func TestMain(m *testing.M) { testbroker.Main(m, func() error { return goleak.Find() }) }
func Main(m *testing.M, after ...func() error) {
	private.open, managed.open = true, true
	code := m.Run()
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "testbroker:", err)
			code = max(code, 1)
		}
	}
	fail(closeShared())
	fail(private.close())
	fail(managed.close())
	for _, f := range after {
		fail(f())
	}
	os.Exit(code)
}

func closeShared() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.node == nil {
		return nil
	}
	err := shared.node.Close()
	shared.node = nil
	return err
}

// sharedURL returns the shared broker's address if a test has used it.
func sharedURL() (string, bool) {
	if url := os.Getenv("AMQP_URL"); url != "" {
		return url, true
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.node == nil {
		return "", false
	}
	return shared.node.URL(), true
}

// RequireNode skips the test unless [Private] could start a node for it.
func RequireNode(tb testing.TB) {
	tb.Helper()
	requireInstallation(tb)
}

// requireInstallation finds a broker that tests may start, or ends the test.
func requireInstallation(tb testing.TB) installation {
	tb.Helper()
	if os.Getenv("MILLPOND_NO_BROKER") != "" {
		tb.Skip(noBrokerWanted)
	}
	in, err := findInstallation(os.Getenv("MILLPOND_BROKER"))
	switch require := os.Getenv("MILLPOND_REQUIRE_BROKER"); {
	case err == nil:
	case errors.Is(err, ErrNoBroker) && (require == "" || require == "url"):
		tb.Skipf("needs a broker to start, AMQP_URL is not enough: %v", err)
	default:
		tb.Fatalf("needs a broker to start, AMQP_URL is not enough: %v", err)
	}
	return in
}

// Dial opens a plain connection that is closed at the end of the test.
func Dial(tb testing.TB, url string) *amqp.Connection {
	tb.Helper()
	conn, err := DialURL(url)
	must(tb, "dial the broker", err)
	// The broker may be frozen by now.
	tb.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	return conn
}

// DialURL is amqp.Dial, which also reaches brokers in memory.
func DialURL(url string) (*amqp.Connection, error) {
	return amqp.DialConfig(url, amqp.Config{Locale: "en_US", Dial: memnet.Dial})
}

// Channel opens a channel on a new connection. Both are closed at the end of the test.
func Channel(tb testing.TB, url string) *amqp.Channel {
	tb.Helper()
	ch, err := Dial(tb, url).Channel()
	must(tb, "open a channel", err)
	return ch
}

// Queue returns a queue name that only this test uses, millpond-test-<test>-<random>. It declares
// nothing. At the end of the test the queue is deleted from the shared broker, together with its
// dead-letter queue and its wait queues of the usual delays. AMQP cannot list queues, so a test
// that creates other ones names them to [Delete]. Nodes that testbroker starts are removed as a
// whole.
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
	conn, err := DialURL(url)
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
		"15s", "16s", "30s", "50s", "1m", "2m", "5m", "8m20s", "10m", "1h",
	}
	names := make([]string, 0, len(delays))
	for _, d := range delays {
		names = append(names, queue+".wait."+d)
	}
	return names
}

// shortName keeps a test's name readable, and short enough for the suffixes of queues.
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

// Depth returns the number of messages of the queue that are ready for delivery, or -1 if there is
// no such queue. It does not count messages that are unacked or held back for at-least-once
// dead-lettering.
func Depth(tb testing.TB, url, queue string) int {
	tb.Helper()
	q, err := lookAt(tb, url, queue)
	var refused *amqp.Error
	if errors.As(err, &refused) && refused.Code == amqp.NotFound {
		return -1
	}
	must(tb, "depth of queue "+queue, err)
	return q.Messages
}

// looks has the open looker of each test and URL.
var looks sync.Map

// looker keeps a connection, because tests look at depths again and again.
type looker struct {
	sync.Mutex
	conn *amqp.Connection
	ch   *amqp.Channel
}

// lookAt asks on the connection of the test's last look, or on a new one if that has ended.
func lookAt(tb testing.TB, url, queue string) (q amqp.Queue, err error) {
	type key struct {
		tb  testing.TB
		url string
	}
	made, known := looks.LoadOrStore(key{tb, url}, new(looker))
	l := made.(*looker)
	if !known {
		tb.Cleanup(func() { looks.Delete(key{tb, url}); l.close() })
	}
	l.Lock()
	defer l.Unlock()
	if l.ch != nil && !l.ch.IsClosed() {
		q, err := l.ch.QueueDeclarePassive(queue, false, false, false, false, nil)
		if err == nil {
			return q, nil
		}
	}
	if l.conn == nil || l.conn.IsClosed() {
		if l.conn, err = DialURL(url); err != nil {
			return q, err
		}
	}
	if l.ch, err = l.conn.Channel(); err != nil {
		return q, err
	}
	return l.ch.QueueDeclarePassive(queue, false, false, false, false, nil)
}

// close closes the connection, unless the broker is frozen.
func (l *looker) close() {
	l.Lock()
	defer l.Unlock()
	if l.conn != nil {
		_ = l.conn.CloseDeadline(time.Now().Add(time.Second))
	}
}

// WaitFor returns soon after cond is true, and fails the test if that takes longer than limit. The
// text awaited completes the sentence "waited 5s for …". The longer it waits, the longer are the
// pauses between two looks, because most looks cost the broker a connection.
func WaitFor(tb testing.TB, awaited string, limit time.Duration, cond func() bool) {
	tb.Helper()
	for began := time.Now(); !cond(); {
		waited := time.Since(began)
		if waited > limit {
			tb.Fatalf("waited %s for %s", limit, awaited)
		}
		time.Sleep(min(max(waited/10, 10*time.Millisecond), 200*time.Millisecond))
	}
}
