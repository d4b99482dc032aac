package main

import (
	"bytes"
	"database/sql"
	"maps"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
)

const patience = 60 * time.Second

func TestMain(m *testing.M) { testbroker.Main(m, func() error { return goleak.Find() }) }

// database makes a database for this test alone on the server that the variables of libpq name, as
// pg_virtualenv sets them, and returns its address. Without a server the test is skipped, or fails
// if MILLPOND_REQUIRE_POSTGRES is set.
func database(t *testing.T) (url string) {
	t.Helper()
	if os.Getenv("PGHOST") == "" && os.Getenv("MILLPOND_REQUIRE_POSTGRES") == "" {
		t.Skip("needs PostgreSQL, of the package postgresql: make test-postgres")
	}
	server, name := connect(t, "postgres:///postgres"), strings.ToLower(t.Name())
	_, err := server.ExecContext(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	return "postgres:///" + name
}

func connect(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func count(t *testing.T, db *sql.DB, table string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+table).Scan(&n))
	return n
}

// story is a service that runs with a database and a queue that no other test uses.
type story struct {
	url, queue string
	db         *sql.DB
	attempts   chan *message.Message // as the handler got them
}

// begin starts the service. Its handler fails at the first attempts of a message.
func begin(t *testing.T, fails int, logger watermill.LoggerAdapter) *story {
	t.Helper()
	s := &story{
		url: testbroker.URL(t), queue: testbroker.Queue(t),
		db: connect(t, database(t)), attempts: make(chan *message.Message, 10),
	}
	service, err := start(t.Context(), s.db, s.url, s.queue, func(msg *message.Message) error {
		attempt := middleware.Attempt(msg.Context())
		seen := message.NewMessage(msg.UUID, msg.Payload)
		seen.Metadata = maps.Clone(msg.Metadata)
		seen.Metadata["attempt"] = strconv.Itoa(attempt)
		s.attempts <- seen
		msg.Metadata["traceparent"] = "of a span inside the handler"
		if attempt <= fails {
			return errNoStock
		}
		return nil
	}, logger)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, service.Close()) })
	return s
}

// place places an order of flour or bread and returns its number.
func (s *story) place(t *testing.T, queue, item string, metadata message.Metadata) string {
	t.Helper()
	order, err := placeOrder(t.Context(), s.db, queue, item, metadata)
	require.NoError(t, err)
	return strconv.Itoa(order)
}

// Given metadata that the producer wrote beside its message, when the message has passed an
// outbox, a relay and three waits, then every attempt sees the same metadata.
func TestTraceAndTrackingAreUnchangedAfterThreeWaits(t *testing.T) {
	t.Parallel()
	s := begin(t, 3, watermill.NopLogger{})
	written := message.Metadata{
		"traceparent":                        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"tracestate":                         "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
		"baggage":                            "customer=7",
		trackingKey:                          "JD0146 – ümläut",
		"X-Request-Id":                       "7f3d",
		wmiddleware.CorrelationIDMetadataKey: "corr-1",
	}
	order := s.place(t, s.queue, "bread", written)
	uuid := ""
	for attempt := 1; attempt <= 4; attempt++ {
		msg := rig.Await(t, s.attempts)
		if attempt == 1 {
			uuid = msg.UUID
		}
		require.Equal(t, strconv.Itoa(attempt), msg.Metadata["attempt"])
		require.Equal(t, uuid, msg.UUID)
		require.Equal(t, order, string(msg.Payload))
		for key, value := range written {
			require.Equal(t, value, msg.Metadata[key], "%s at attempt %d", key, attempt)
		}
	}
	testbroker.WaitFor(t, "the queues to be empty", patience, func() bool {
		return testbroker.Depth(t, s.url, s.queue) == 0 &&
			testbroker.Depth(t, s.url, s.queue+".wait.2s") == 0
	})
	require.Equal(t, 0, testbroker.Depth(t, s.url, s.queue+".dlq"))
}

// Given an order that is rolled back, then its message is not in the outbox either.
func TestOrderThatIsRolledBackHasNoMessage(t *testing.T) {
	t.Parallel()
	s := begin(t, 0, watermill.NopLogger{})
	_, err := placeOrder(t.Context(), s.db, s.queue, "", nil)
	require.ErrorContains(t, err, "an order of nothing")
	require.Equal(t, 0, count(t, s.db, "orders"))
	require.Equal(t, 0, count(t, s.db, "watermill_outbox"))

	order := s.place(t, s.queue, "flour", nil)
	require.Equal(t, order, string(rig.Await(t, s.attempts).Payload))
	require.Equal(t, 1, count(t, s.db, "orders"))
}

// failureLog passes on the first error that is logged.
type failureLog chan error

func (f failureLog) Error(_ string, err error, _ watermill.LogFields) {
	select {
	case f <- err:
	default:
	}
}

func (f failureLog) With(watermill.LogFields) watermill.LoggerAdapter { return f }
func (failureLog) Info(string, watermill.LogFields)                   {}
func (failureLog) Debug(string, watermill.LogFields)                  {}
func (failureLog) Trace(string, watermill.LogFields)                  {}

// Given a message for a queue that is missing, then the relay keeps it in the table, and the
// message behind it waits. When the queue is declared, both are relayed.
func TestMessageWithoutAQueueStaysInTheOutbox(t *testing.T) {
	t.Parallel()
	failures := make(failureLog, 1)
	s := begin(t, 0, failures)
	later := testbroker.Queue(t)
	s.place(t, later, "bread", nil)
	order := s.place(t, s.queue, "flour", nil)
	_ = rig.Await(t, failures)
	require.Empty(t, s.attempts, "the order behind it must wait")
	_, err := testbroker.Channel(t, s.url).QueueDeclare(later, true, false, false, false, nil)
	require.NoError(t, err)
	behind := rig.Await(t, s.attempts)
	require.Equal(t, order, string(behind.Payload))
	require.Equal(t, 1, testbroker.Depth(t, s.url, later))
}

func TestProgramHandlesBothOrders(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	postgres, broker := database(t), testbroker.URL(t)
	require.NoError(t, run(t.Context(), postgres, broker, testbroker.Queue(t), &out))
	for _, line := range []string{
		"order 1, attempt 1, tracking parcel of flour\n", "order 1 is handled\n",
		"order 2, attempt 1, tracking parcel of bread\n",
		"order 2, attempt 4, tracking parcel of bread\n", "order 2 is handled\n",
	} {
		require.Contains(t, out.String(), line)
	}
}

func TestProgramSaysWhatItNeeds(t *testing.T) {
	t.Parallel()
	err := run(t.Context(), "", "amqp://localhost", "orders", &bytes.Buffer{})
	require.ErrorIs(t, err, errUsage)
}
