package main

import (
	"bytes"
	"database/sql"
	"maps"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
)

const patience = 60 * time.Second

func TestMain(m *testing.M) {
	testbroker.Main(m, func() error { return goleak.Find() })
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

// What the producer wrote beside its message, after an outbox, a relay and three waits.
func TestTraceAndTrackingAreUnchangedAfterThreeWaits(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	db := connect(t, testbroker.PrivatePostgres(t).URL())
	attempts := make(chan *message.Message, 10)
	s, err := start(t.Context(), db, url, queue, func(msg *message.Message) error {
		attempt := middleware.Attempt(msg.Context())
		seen := message.NewMessage(msg.UUID, msg.Payload)
		seen.Metadata = maps.Clone(msg.Metadata)
		seen.Metadata["attempt"] = strconv.Itoa(attempt)
		attempts <- seen
		msg.Metadata["traceparent"] = "of a span inside the handler"
		if attempt < 4 {
			return errNoStock
		}
		return nil
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.close()) })

	written := message.Metadata{
		"traceparent":                        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"tracestate":                         "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
		"baggage":                            "customer=7",
		trackingKey:                          "JD0146 – ümläut",
		"X-Request-Id":                       "7f3d",
		wmiddleware.CorrelationIDMetadataKey: "corr-1",
	}
	order, err := placeOrder(t.Context(), db, queue, "bread", written)
	require.NoError(t, err)
	uuid := ""
	for attempt := 1; attempt <= 4; attempt++ {
		select {
		case msg := <-attempts:
			if attempt == 1 {
				uuid = msg.UUID
			}
			require.Equal(t, strconv.Itoa(attempt), msg.Metadata["attempt"])
			require.Equal(t, uuid, msg.UUID)
			require.Equal(t, strconv.Itoa(order), string(msg.Payload))
			for key, value := range written {
				require.Equal(t, value, msg.Metadata[key], "%s at attempt %d", key, attempt)
			}
		case <-time.After(patience):
			t.Fatalf("waited %s for attempt %d", patience, attempt)
		}
	}
	testbroker.WaitFor(t, "the queues to be empty", patience, func() bool {
		return testbroker.Depth(t, url, queue) == 0 && testbroker.Depth(t, url, queue+".wait.2s") == 0
	})
	require.Equal(t, 0, testbroker.Depth(t, url, queue+".dlq"))
}

// Both are there or neither.
func TestOrderThatIsRolledBackHasNoMessage(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	db := connect(t, testbroker.PrivatePostgres(t).URL())
	handled := make(chan string, 10)
	s, err := start(t.Context(), db, url, queue, func(msg *message.Message) error {
		handled <- string(msg.Payload)
		return nil
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.close()) })

	_, err = placeOrder(t.Context(), db, queue, "", nil)
	require.ErrorContains(t, err, "an order of nothing")
	require.Equal(t, 0, count(t, db, "orders"))
	require.Equal(t, 0, count(t, db, "watermill_outbox"))

	order, err := placeOrder(t.Context(), db, queue, "flour", nil)
	require.NoError(t, err)
	select {
	case first := <-handled:
		require.Equal(t, strconv.Itoa(order), first, "the outbox keeps the order")
	case <-time.After(patience):
		t.Fatalf("waited %s for the order", patience)
	}
	require.Equal(t, 1, count(t, db, "orders"))
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

// A relay whose queue is missing keeps the message in the table.
func TestMessageWithoutAQueueStaysInTheOutbox(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	db := connect(t, testbroker.PrivatePostgres(t).URL())
	handled := make(chan string, 10)
	failures := make(failureLog, 1)
	s, err := start(t.Context(), db, url, queue, func(msg *message.Message) error {
		handled <- string(msg.Payload)
		return nil
	}, failures)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.close()) })

	later := testbroker.Queue(t)
	_, err = placeOrder(t.Context(), db, later, "bread", nil)
	require.NoError(t, err)
	order, err := placeOrder(t.Context(), db, queue, "flour", nil)
	require.NoError(t, err)
	select {
	case <-failures:
	case <-time.After(patience):
		t.Fatalf("waited %s for the relay to fail", patience)
	}
	require.Empty(t, handled, "the order behind it has to wait")
	_, err = testbroker.Channel(t, url).QueueDeclare(later, true, false, false, false, nil)
	require.NoError(t, err)
	select {
	case first := <-handled:
		require.Equal(t, strconv.Itoa(order), first)
	case <-time.After(patience):
		t.Fatalf("waited %s for the order behind the one without a queue", patience)
	}
	require.Equal(t, 1, testbroker.Depth(t, url, later))
}

func TestProgramHandlesBothOrders(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), testbroker.PrivatePostgres(t).URL(), testbroker.URL(t), testbroker.Queue(t), &out))
	for _, line := range []string{
		"order 1, attempt 1, tracking parcel of flour\n", "order 1 is handled\n",
		"order 2, attempt 1, tracking parcel of bread\n", "order 2, attempt 4, tracking parcel of bread\n", "order 2 is handled\n",
	} {
		require.Contains(t, out.String(), line)
	}
}

func TestProgramSaysWhatItNeeds(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, run(t.Context(), "", "amqp://localhost", "orders", &bytes.Buffer{}), errUsage)
}
