package main

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
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

// naive books without an inbox.
func (b *Bank) naive(msg *message.Message) error {
	amount, err := strconv.Atoi(string(msg.Payload))
	if err != nil {
		return err
	}
	tx, err := b.db.BeginTx(msg.Context(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	return errors.Join(book(msg.Context(), tx, amount), tx.Commit())
}

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
