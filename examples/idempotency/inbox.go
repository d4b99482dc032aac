package main

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

const createInbox = `CREATE TABLE IF NOT EXISTS inbox (
	queue      TEXT NOT NULL,
	message_id TEXT NOT NULL,
	handled_at INTEGER NOT NULL,
	PRIMARY KEY (queue, message_id)
)`

// Inbox remembers the messages whose work is committed.
type Inbox struct{ db *sql.DB }

// Once calls work in a transaction that also notes the message, and reports whether
// it did. It is false and work not called where the message was noted before. If
// work fails nothing is noted, so that the next attempt calls it again.
//
// Two consumers that have the same message at once wait for each other here, on the
// primary key; the second finds it noted, or gets its turn where the first failed.
func (i *Inbox) Once(ctx context.Context, queue, id string, work func(*sql.Tx) error) (done bool, err error) {
	tx, err := i.db.BeginTx(ctx, nil)
	if err != nil {
		return false, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	noted, err := tx.ExecContext(ctx, `INSERT INTO inbox (queue, message_id, handled_at) VALUES (?, ?, ?)
		ON CONFLICT (queue, message_id) DO NOTHING`, queue, id, time.Now().Unix())
	if err != nil {
		return false, fmt.Errorf("note message %q: %w", id, err)
	}
	rows, err := noted.RowsAffected()
	if err != nil || rows == 0 {
		return false, err
	}
	if err := work(tx); err != nil {
		return false, err
	}
	if err := tx.Commit(); err != nil {
		return false, fmt.Errorf("commit: %w", err)
	}
	return true, nil
}

// Forget removes what was noted before then. Keep it for longer than a message can
// come back: all delays of the policy together, and as long as dead letters may lie
// before they are moved back.
func (i *Inbox) Forget(ctx context.Context, then time.Time) error {
	_, err := i.db.ExecContext(ctx, `DELETE FROM inbox WHERE handled_at < ?`, then.Unix())
	return err
}
