package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestProgramBooksAPaymentOnce(t *testing.T) {
	t.Parallel()
	url, file := testbroker.Private(t).URL(), newFile(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, url, []string{file}) }()
	testbroker.WaitFor(t, "the queue", patience, func() bool { return testbroker.Depth(t, url, "payments") == 0 })
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
