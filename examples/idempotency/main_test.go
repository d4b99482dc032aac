package main

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestMain(m *testing.M) { testbroker.Main(m, func() error { return goleak.Find() }) }

func TestProgramBooksAPaymentOnce(t *testing.T) {
	t.Parallel()
	url, file := testbroker.Private(t).URL(), newFile(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, url, []string{file}) }()
	rig.AwaitDepth(t, url, "payments", 0)
	pay(t, url, "payments", "payment-1")
	pay(t, url, "payments", "payment-1")
	bank := newBank(t, file)
	awaitBalance(t, bank, amount)
	cancel()
	require.NoError(t, <-ended)
	awaitBalance(t, bank, amount)
	require.Zero(t, testbroker.Depth(t, url, "payments.dlq"))
}

func TestProgramSaysHowItIsUsed(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"a", "b"}} {
		require.ErrorContains(t, run(t.Context(), "amqp://127.0.0.1:1/", args), "usage: AMQP_URL=")
	}
	require.ErrorContains(t, run(t.Context(), "", []string{newFile(t)}), "usage: AMQP_URL=")
}

const (
	patience = 60 * time.Second
	amount   = 100
)

var errNoAnswer = errors.New("no answer")

func newBank(t *testing.T, file string) *Bank {
	t.Helper()
	bank, err := OpenBank(t.Context(), file)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, bank.Close()) })
	return bank
}

func newFile(t *testing.T) string { return filepath.Join(t.TempDir(), "payments.db") }

// start runs the service until the end of the test.
func start(t *testing.T, s Service) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended, ready := make(chan error, 1), make(chan struct{})
	if s.Logger == nil {
		s.Logger = watermill.NopLogger{}
	}
	if s.policy == nil {
		s.policy = backoff.List{time.Second}
	}
	s.ready = func() { close(ready) }
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		t.Fatalf("service did not start: %v", err)
	}
	stop = func() {
		cancel()
		if err, running := <-ended; running {
			require.NoError(t, err)
			close(ended)
		}
	}
	t.Cleanup(stop)
	return stop
}

// pay sends a payment.
func pay(t *testing.T, url, queue, id string) {
	t.Helper()
	rig.Publish(t, url, "", queue, amqp.Publishing{
		MessageId: id, DeliveryMode: amqp.Persistent, Body: []byte(strconv.Itoa(amount)),
	})
}

func awaitBalance(t *testing.T, b *Bank, want int) {
	t.Helper()
	testbroker.WaitFor(t, "a balance of "+strconv.Itoa(want), patience, func() bool {
		balance, err := b.Balance(t.Context())
		require.NoError(t, err)
		return balance == want
	})
}

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

// Given a payment without an id, then it is dead-lettered: its duplicate could not be recognised.
func TestAPaymentWithoutAnIDIsGivenUp(t *testing.T) {
	t.Parallel()
	url, queue, bank := testbroker.URL(t), testbroker.Queue(t), newBank(t, newFile(t))
	start(t, Service{URL: url, Queue: queue, Handle: bank.Handle})
	pay(t, url, queue, "")
	rig.AwaitDepth(t, url, queue+".dlq", 1)
	awaitBalance(t, bank, 0)
}

// Given a payment whose ack is lost with the connection after the work, then it comes again, and is
// booked once.
func TestDuplicatesAreAbsorbed(t *testing.T) {
	t.Parallel()
	url, queue, bank := testbroker.URL(t), testbroker.Queue(t), newBank(t, newFile(t))
	proxy := testbroker.NewProxy(t, url)
	var worked atomic.Int32
	stop := start(t, Service{
		URL: proxy.URL(), Queue: queue, Handle: func(msg *message.Message) error {
			err := bank.Handle(msg)
			if err == nil && worked.Add(1) == 1 {
				proxy.Cut()
				<-msg.Context().Done()
			}
			return err
		},
	})
	pay(t, url, queue, "payment-1")
	testbroker.WaitFor(t, "the message was handled twice", patience,
		func() bool { return worked.Load() >= 2 })
	stop()
	awaitBalance(t, bank, amount)
	// A busy machine may add duplicates.
	require.Equal(t, int(worked.Load())-1, bank.Duplicates())
	require.Zero(t, testbroker.Depth(t, url, queue))
	require.Zero(t, testbroker.Depth(t, url, queue+".dlq"))
}
