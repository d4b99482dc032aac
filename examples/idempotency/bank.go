package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite"

	"github.com/millpond-go/millpond/middleware"
)

var (
	errNoID = errors.New("message has neither a message id nor a UUID: " +
		"a duplicate cannot be recognised")
	errNoPayment = errors.New("payload is not an amount")
)

// Bank books payments on one account.
type Bank struct {
	db         *sql.DB
	inbox      Inbox
	duplicates atomic.Int64 // absorbed
}

// OpenBank opens the bank in a file.
func OpenBank(ctx context.Context, file string) (*Bank, error) {
	// Each transaction takes the write lock as it begins: two transactions that wait to upgrade a
	// lock for reading would block each other.
	dsn := "file:" + url.PathEscape(file) +
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)"
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, err
	}
	for _, statement := range []string{
		createInbox,
		`CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)`,
		`INSERT INTO account (id, balance) VALUES (1, 0) ON CONFLICT (id) DO NOTHING`,
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return nil, errors.Join(fmt.Errorf("set up %s: %w", file, err), db.Close())
		}
	}
	return &Bank{db: db, inbox: Inbox{db}}, nil
}

// Handle books the amount in the payload of msg, once for each message.
func (b *Bank) Handle(msg *message.Message) error {
	queue, id := identity(msg)
	if id == "" {
		return middleware.Permanent(errNoID)
	}
	amount, err := strconv.Atoi(string(msg.Payload))
	if err != nil {
		return middleware.Permanent(fmt.Errorf("%w: %w", errNoPayment, err))
	}
	ctx := msg.Context()
	done, err := b.inbox.Once(ctx, queue, id, func(tx *sql.Tx) error { return book(ctx, tx, amount) })
	if err == nil && !done {
		b.duplicates.Add(1) // success: the router acks it
	}
	return err
}

// identity returns the same values whenever the message comes: no retry changes its ids. The
// queue is part of it, because two queues on one exchange get the same message, and each has its
// own work.
func identity(msg *message.Message) (queue, id string) {
	d, ok := middleware.DeliveryOf(msg.Context())
	if !ok {
		return "", msg.UUID
	}
	return d.Queue, cmp.Or(d.MessageID, msg.UUID)
}

func book(ctx context.Context, tx *sql.Tx, amount int) error {
	_, err := tx.ExecContext(ctx, `UPDATE account SET balance = balance + ? WHERE id = 1`, amount)
	return err
}

// Balance returns the sum of the booked payments.
func (b *Bank) Balance(ctx context.Context) (balance int, err error) {
	err = b.db.QueryRowContext(ctx, `SELECT balance FROM account WHERE id = 1`).Scan(&balance)
	return balance, err
}

// Duplicates returns the number of messages that were known already.
func (b *Bank) Duplicates() int { return int(b.duplicates.Load()) }

// Close closes the file.
func (b *Bank) Close() error { return b.db.Close() }

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
