package postgresql_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/delayed"
)

const (
	patience = 30 * time.Second
	slack    = 5 * time.Millisecond
)

var errFailed = errors.New("the shop is closed")

// server is shared by the tests of this package, which have their own topics.
var server struct {
	sync.Mutex
	postgres *testbroker.Postgres
}

func TestMain(m *testing.M) {
	testbroker.Main(m, func() error {
		if server.postgres == nil {
			return nil
		}
		return server.postgres.Close()
	}, func() error { return goleak.Find() })
}

// open connects to the shared server, or skips the test where there is none.
func open(t *testing.T) *sql.DB {
	t.Helper()
	server.Lock()
	defer server.Unlock()
	if server.postgres == nil {
		p, err := testbroker.StartPostgres(context.Background())
		if errors.Is(err, testbroker.ErrNoPostgres) && os.Getenv("MILLPOND_REQUIRE_POSTGRES") == "" {
			t.Skip(err)
		}
		require.NoError(t, err)
		server.postgres = p
	}
	db, err := sql.Open("pgx", server.postgres.URL())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.NoError(t, db.PingContext(t.Context()))
	return db
}

// rig is a router on the delayed Pub/Sub of PostgreSQL.
type rig struct {
	t     *testing.T
	db    *sql.DB
	topic string
	pub   message.Publisher
	stop  func()
}

func newRig(t *testing.T, policy backoff.Policy, handler message.NoPublishHandlerFunc) *rig {
	t.Helper()
	r := &rig{t: t, db: open(t), topic: "orders-" + watermill.NewShortUUID()}
	logger := watermill.NopLogger{}
	var err error
	config := wsql.DelayedPostgreSQLPublisherConfig{}
	config.DelayPublisherConfig = delay.PublisherConfig{AllowNoDelay: true}
	db := wsql.BeginnerFromStdSQL(r.db)
	r.pub, err = wsql.NewDelayedPostgreSQLPublisher(db, config)
	require.NoError(t, err)
	sub, err := NewSubscriber(r.db, 20*time.Millisecond)
	require.NoError(t, err)
	// By default watermill-sql refuses a message without a delay, even a dead letter.
	strict, err := wsql.NewDelayedPostgreSQLPublisher(db, wsql.DelayedPostgreSQLPublisherConfig{})
	require.NoError(t, err)
	republisher, err := delayed.NewRepublisher(strict)
	require.NoError(t, err)
	retry, err := middleware.NewDelayedRetry(republisher, policy)
	require.NoError(t, err)

	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, logger)
	require.NoError(t, err)
	router.AddSubscriberDecorators(republisher.Subscriber)
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("billing", r.topic, sub, handler)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	r.stop = sync.OnceFunc(func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
	})
	t.Cleanup(func() { r.stop(); require.NoError(t, errors.Join(r.pub.Close(), strict.Close())) })
	select {
	case <-router.Running():
	case <-time.After(patience):
		t.Fatal("waited for the router to run")
	}
	return r
}

func (r *rig) publish(payload string) *message.Message {
	r.t.Helper()
	msg := message.NewMessage(watermill.NewUUID(), message.Payload(payload))
	msg.Metadata["customer"] = "7"
	require.NoError(r.t, r.pub.Publish(r.topic, msg))
	return msg
}

// stored is a row of a topic.
type stored struct {
	uuid, payload string
	metadata      map[string]string
}

// rows are the rows of a topic that are not acked, none without a table.
func (r *rig) rows(topic string) []stored {
	r.t.Helper()
	table := fmt.Sprintf(`"watermill_%s"`, topic)
	var exists bool
	row := r.db.QueryRowContext(r.t.Context(), `SELECT to_regclass($1) IS NOT NULL`, table)
	require.NoError(r.t, row.Scan(&exists))
	if !exists {
		return nil
	}
	rows, err := r.db.QueryContext(r.t.Context(), `SELECT uuid, payload::text, metadata::text FROM `+
		table+` WHERE NOT acked ORDER BY "offset"`)
	require.NoError(r.t, err)
	defer rows.Close()
	var found []stored
	for rows.Next() {
		var s stored
		var metadata string
		require.NoError(r.t, rows.Scan(&s.uuid, &s.payload, &metadata))
		require.NoError(r.t, json.Unmarshal([]byte(metadata), &s.metadata))
		found = append(found, s)
	}
	require.NoError(r.t, rows.Err())
	return found
}

// dead waits for the one dead letter.
func (r *rig) dead() stored {
	r.t.Helper()
	var found []stored
	testbroker.WaitFor(r.t, "the dead letter", patience, func() bool {
		found = r.rows(r.topic + ".dlq")
		return len(found) > 0
	})
	require.Len(r.t, found, 1)
	return found[0]
}
