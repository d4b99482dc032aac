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
	d := middleware.DeliveryOf(msg.Context(), nil)
	if d == nil {
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
