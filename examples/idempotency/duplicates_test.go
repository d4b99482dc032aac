package main

import (
	"context"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
)

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
