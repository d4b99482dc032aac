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

// Once calls work in a transaction that also notes the message, and reports whether it called it.
// A message that was noted before is not worked on again. If work fails, the message is not noted,
// so the next attempt calls work again.
//
// Two consumers with the same message at the same time wait for each other here, on the primary
// key. The second finds the message noted, or works itself if the first failed.
func (i *Inbox) Once(
	ctx context.Context, queue, id string, work func(*sql.Tx) error,
) (done bool, err error) {
	tx, err := i.db.BeginTx(ctx, nil)
	if err != nil {
		return false, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	noted, err := tx.ExecContext(ctx, `
		INSERT INTO inbox (queue, message_id, handled_at) VALUES (?, ?, ?)
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

// Forget removes the messages that were noted before then. Keep them for longer than a message can
// come back: the sum of the policy's delays, and the time that dead letters may lie before an
// operator moves them back.
func (i *Inbox) Forget(ctx context.Context, then time.Time) error {
	_, err := i.db.ExecContext(ctx, `DELETE FROM inbox WHERE handled_at < ?`, then.Unix())
	return err
}
