package postgresql_test

import (
	"database/sql"
	"fmt"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/delay"
)

// ackDeadline is how long a handler may take.
var ackDeadline = 3 * time.Second

// NewSubscriber returns watermill-sql's subscriber for messages that may wait. It reads
// one message at a time. If one of a batch takes too long, watermill-sql acks all of
// them, also messages that no handler has seen.
func NewSubscriber(db *sql.DB, poll time.Duration) (*wsql.Subscriber, error) {
	const due = `(metadata->>'%[1]s')::timestamptz < NOW() OR (metadata->>'%[1]s') IS NULL`
	where := fmt.Sprintf(due, delay.DelayedUntilKey)
	return wsql.NewSubscriber(wsql.BeginnerFromStdSQL(db), wsql.SubscriberConfig{
		SchemaAdapter: wsql.PostgreSQLQueueSchema{
			SubscribeBatchSize:  1,
			GenerateWhereClause: func(wsql.GenerateWhereClauseParams) (string, []any) { return where, nil },
		},
		OffsetsAdapter:   wsql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
		InitializeSchema: true,
		AckDeadline:      &ackDeadline,
		PollInterval:     poll,
		ResendInterval:   poll,
		RetryInterval:    poll,
	}, nil)
}
