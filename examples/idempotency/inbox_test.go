package main

import (
	"database/sql"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
)

// once works on the payment that all these tests share.
func once(t *testing.T, b *Bank, work func(*sql.Tx) error) (bool, error) {
	t.Helper()
	return b.inbox.Once(t.Context(), "payments", "payment-1", work)
}

func works(t *testing.T) func(*sql.Tx) error {
	return func(tx *sql.Tx) error { return book(t.Context(), tx, amount) }
}

func TestWorkIsDoneOnceAmongMany(t *testing.T) {
	t.Parallel()
	bank := newBank(t, newFile(t))
	var worked atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			done, err := once(t, bank, works(t))
			if err != nil {
				t.Error(err)
			}
			if done {
				worked.Add(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, worked.Load())
	awaitBalance(t, bank, amount)
}

func TestWorkThatFailsIsNotNoted(t *testing.T) {
	t.Parallel()
	bank := newBank(t, newFile(t))
	done, err := once(t, bank, func(tx *sql.Tx) error {
		require.NoError(t, book(t.Context(), tx, amount))
		return errNoAnswer
	})
	require.False(t, done)
	require.ErrorIs(t, err, errNoAnswer)
	awaitBalance(t, bank, 0)
	done, err = once(t, bank, works(t))
	require.True(t, done)
	require.NoError(t, err)
	awaitBalance(t, bank, amount)
}

func TestTheInboxForgets(t *testing.T) {
	t.Parallel()
	bank := newBank(t, newFile(t))
	nothing := func(*sql.Tx) error { return nil }
	for _, want := range []bool{true, false} {
		done, err := once(t, bank, nothing)
		require.NoError(t, err)
		require.Equal(t, want, done)
	}
	require.NoError(t, bank.inbox.Forget(t.Context(), time.Now().Add(-time.Hour)))
	done, err := once(t, bank, nothing)
	require.NoError(t, err)
	require.False(t, done)
	require.NoError(t, bank.inbox.Forget(t.Context(), time.Now().Add(time.Hour)))
	done, err = once(t, bank, nothing)
	require.NoError(t, err)
	require.True(t, done)
}

// Given a payment whose first attempt fails, then it is retried and booked: a failed attempt
// leaves no trace in the inbox.
func TestARetryIsNoDuplicate(t *testing.T) {
	t.Parallel()
	url, queue, bank := testbroker.URL(t), testbroker.Queue(t), newBank(t, newFile(t))
	var attempts atomic.Int32
	start(t, Service{URL: url, Queue: queue, Handle: func(msg *message.Message) error {
		attempts.Store(int32(middleware.Attempt(msg.Context())))
		if middleware.Attempt(msg.Context()) == 1 {
			if _, err := once(t, bank, func(*sql.Tx) error { return errNoAnswer }); err != nil {
				return err
			}
		}
		return bank.Handle(msg)
	}})
	pay(t, url, queue, "payment-1")
	awaitBalance(t, bank, amount)
	require.EqualValues(t, 2, attempts.Load())
	require.Zero(t, bank.Duplicates())
}

// Given a payment without an id, then it is dead-lettered: its duplicate could not be recognised.
func TestAPaymentWithoutAnIDIsGivenUp(t *testing.T) {
	t.Parallel()
	url, queue, bank := testbroker.URL(t), testbroker.Queue(t), newBank(t, newFile(t))
	start(t, Service{URL: url, Queue: queue, Handle: bank.Handle})
	pay(t, url, queue, "")
	rig.AwaitDepth(t, url, queue+".dlq", 1)
	awaitBalance(t, bank, 0)
}
