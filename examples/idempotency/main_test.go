package main

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
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
	"github.com/millpond-go/millpond/middleware"
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

// duplicate makes a message come twice. It returns the service that handles it by h, and the
// function that sends the message.
type duplicate func(t *testing.T, url, queue string, h handler) (Service, func())

type handler = message.NoPublishHandlerFunc

// Given a duplicate that the guarantees allow, then the payment is booked twice without the inbox
// and once with it.
func TestDuplicatesAreAbsorbed(t *testing.T) {
	t.Parallel()
	for name, bring := range map[string]duplicate{
		"sent twice by its producer":                       sentTwice,
		"connection lost between the work and the ack":     ackLost,
		"confirm of the hand-over too late, so sent again": confirmLate,
	} {
		for kind, times := range map[string]int{"without an inbox": 2, "with an inbox": 1} {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				url, queue, bank := testbroker.URL(t), testbroker.Queue(t), newBank(t, newFile(t))
				handle := bank.Handle
				if times == 2 {
					handle = bank.naive
				}
				var worked atomic.Int32
				service, send := bring(t, url, queue, func(msg *message.Message) error {
					err := handle(msg)
					if err == nil {
						worked.Add(1)
					}
					return err
				})
				stop := start(t, service)
				send()
				testbroker.WaitFor(t, "the message was handled twice", patience,
					func() bool { return worked.Load() >= 2 })
				stop()
				// A busy machine may add duplicates.
				booked, absorbed := int(worked.Load()), 0
				if times == 1 {
					booked, absorbed = 1, booked-1
				}
				awaitBalance(t, bank, booked*amount)
				require.Equal(t, absorbed, bank.Duplicates())
				require.Zero(t, testbroker.Depth(t, url, queue))
				require.Zero(t, testbroker.Depth(t, url, queue+".dlq"))
			})
		}
	}
}

func sentTwice(t *testing.T, url, queue string, h handler) (Service, func()) {
	return Service{URL: url, Queue: queue, Handle: h}, func() {
		pay(t, url, queue, "payment-1")
		pay(t, url, queue, "payment-1")
	}
}

func ackLost(t *testing.T, url, queue string, h handler) (Service, func()) {
	proxy := testbroker.NewProxy(t, url)
	var calls atomic.Int32
	service := Service{URL: proxy.URL(), retriesURL: url, Queue: queue}
	service.Handle = func(msg *message.Message) error {
		err := h(msg)
		if calls.Add(1) == 1 {
			proxy.Cut()
			<-msg.Context().Done()
		}
		return err
	}
	return service, func() { pay(t, url, queue, "payment-1") }
}

// confirmLate lets the broker store the copy and confirm it late. The first attempt succeeds, so
// that the channel is open.
func confirmLate(t *testing.T, url, queue string, h handler) (Service, func()) {
	proxy := testbroker.NewProxy(t, url)
	service := Service{
		URL: url, retriesURL: proxy.URL(), Queue: queue, confirmTimeout: 2 * time.Second,
		policy: backoff.List{50 * time.Millisecond, 5 * time.Second},
		Handle: func(msg *message.Message) error {
			switch middleware.Attempt(msg.Context()) {
			case 1:
				return errNoAnswer
			case 2:
				proxy.Delay(2200 * time.Millisecond)
				return errNoAnswer
			}
			return h(msg)
		},
	}
	return service, func() {
		pay(t, url, queue, "payment-1")
		testbroker.WaitFor(t, "the copy whose confirm is late", patience, func() bool {
			return testbroker.Depth(t, url, queue+".wait.5s") > 0
		})
		proxy.Delay(0)
	}
}

// killedFile tells this test binary to be the service that is killed.
const killedFile = "MILLPOND_TEST_KILLED_FILE"

// Given a process that is killed after it has committed the work and before it acks the message,
// when the next process gets the message, then it finds the work done.
func TestKilledBetweenTheWorkAndTheAck(t *testing.T) {
	if file := os.Getenv(killedFile); file != "" {
		serveUntilKilled(t, file)
		return
	}
	t.Parallel()
	for kind, times := range map[string]int{"naive": 2, "inbox": 1} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			url, queue, file := testbroker.URL(t), testbroker.Queue(t), newFile(t)
			bank := newBank(t, file)
			child := exec.Command(os.Args[0], "-test.run=^TestKilledBetweenTheWorkAndTheAck$")
			child.Env = append(os.Environ(),
				killedFile+"="+file, "AMQP_URL="+url, "QUEUE="+queue, "KIND="+kind)
			require.NoError(t, child.Start())
			timer := time.AfterFunc(patience, func() { _ = child.Process.Kill() })
			defer timer.Stop()
			rig.AwaitDepth(t, url, queue, 0) // the child has declared it
			pay(t, url, queue, "payment-1")
			require.ErrorContains(t, child.Wait(), "killed")
			awaitBalance(t, bank, amount)

			handle := bank.Handle
			if kind == "naive" {
				handle = bank.naive
			}
			var worked atomic.Int32
			start(t, Service{URL: url, Queue: queue, Handle: func(msg *message.Message) error {
				defer worked.Add(1)
				return handle(msg)
			}})
			testbroker.WaitFor(t, "the message was delivered again", patience,
				func() bool { return worked.Load() == 1 })
			awaitBalance(t, bank, times*amount)
			require.Equal(t, 2-times, bank.Duplicates())
		})
	}
}

func serveUntilKilled(t *testing.T, file string) {
	bank, err := OpenBank(t.Context(), file)
	require.NoError(t, err)
	handle := bank.Handle
	if os.Getenv("KIND") == "naive" {
		handle = bank.naive
	}
	require.NoError(t, Service{
		URL: os.Getenv("AMQP_URL"), Queue: os.Getenv("QUEUE"), Logger: watermill.NopLogger{},
		Handle: func(msg *message.Message) error {
			err := handle(msg)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			return err
		},
	}.Run(context.Background()))
}
