package topology_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// crashQueue tells this test binary to be the service of TestCrashLoopEnds.
const crashQueue = "MILLPOND_TEST_CRASH_QUEUE"

// crashInFlight tells it how many messages it has in progress.
const crashInFlight = "MILLPOND_TEST_CRASH_IN_FLIGHT"

// One message kills the process (-9) that handles it, with 49 innocent ones
// behind it that were prefetched; the service is started again at once. Within 15
// restarts the poison alone is in the DLQ, the others are handled, and none has
// lost an attempt (C10). The queue is a quorum queue with its default limit. With
// all 50 in progress at once the poison is faster than any of the others.
func TestCrashLoopEnds(t *testing.T) {
	if queue := os.Getenv(crashQueue); queue != "" {
		crash(t, os.Getenv("AMQP_URL"), queue)
		return
	}
	t.Parallel()
	for _, c := range []struct{ position, inFlight int }{{0, 1}, {25, 1}, {25, 50}} {
		t.Run(fmt.Sprintf("poison at %d, %d in flight", c.position, c.inFlight), func(t *testing.T) {
			t.Parallel()
			const messages, maxRestarts = 50, 15
			url, queue := testbroker.URL(t), testbroker.Queue(t)
			rig.RemovePlan(t, url, topology.PerQueue{}, queue, []time.Duration{time.Second})
			_, err := testbroker.Channel(t, url).QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
			require.NoError(t, err)
			for i := range messages {
				body := fmt.Sprint("innocent ", i)
				if i == c.position {
					body = "poison"
				}
				rig.Publish(t, url, "", queue, rig.Message(body))
			}

			handled := map[string]int{}
			deadline := time.Now().Add(2 * rig.Patience)
			restarts := 0
			for ; testbroker.Depth(t, url, queue+".dlq") != 1; restarts++ {
				require.LessOrEqual(t, restarts, maxRestarts, "restarts")
				require.True(t, time.Now().Before(deadline), "in time")
				runUntilItDies(t, url, queue, c.inFlight, handled)
			}
			t.Logf("%d restarts", restarts)
			for i := range messages {
				if i != c.position {
					require.Positive(t, handled[fmt.Sprint("innocent ", i, " attempt 1")], "innocent %d: %v", i, handled)
				}
			}
			dead := rig.Take(t, url, queue+".dlq")
			require.Equal(t, "poison", string(dead.Body))
			require.Equal(t, "crash_loop", dead.Headers[header.DeadReason])
			require.Equal(t, "0", dead.Headers[header.DeadFailures])
			require.Zero(t, testbroker.Depth(t, url, queue))
			require.Zero(t, testbroker.Depth(t, url, queue+".wait.1s"))
		})
	}
}

// runUntilItDies runs the service until the poison kills it, or until the poison
// is dead-lettered and nothing is left; it counts what was handled.
func runUntilItDies(t *testing.T, url, queue string, inFlight int, handled map[string]int) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestCrashLoopEnds$")
	child.Env = append(os.Environ(), crashQueue+"="+queue, crashInFlight+"="+strconv.Itoa(inFlight), "AMQP_URL="+url)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	died := make(chan struct{})
	go func() {
		defer close(died)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if what, ok := strings.CutPrefix(lines.Text(), "handled "); ok {
				handled[what]++
			}
		}
		_ = child.Wait() // killed
	}()
	rig.WaitFor(t, "the service dies or the poison is dead-lettered", func() bool {
		select {
		case <-died:
			return true
		default:
			return testbroker.Depth(t, url, queue+".dlq") == 1 &&
				testbroker.Depth(t, url, queue) == 0 && testbroker.Depth(t, url, queue+".wait.1s") == 0
		}
	})
	_ = child.Process.Signal(syscall.SIGKILL)
	<-died
}

// crash is a service whose handler kills its process over one message.
func crash(t *testing.T, url, queue string) {
	cfg := rig.QueueConfig(url)
	cfg.Consume.Qos.PrefetchCount = 50
	rig.QuorumQueue(&cfg)
	policy := backoff.List{time.Second}
	client, err := topology.Open(context.Background(), cfg.Connection, topology.PerQueue{})
	require.NoError(t, err)
	inFlight, err := strconv.Atoi(os.Getenv(crashInFlight))
	require.NoError(t, err)
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy), topology.WithConcurrency(inFlight))
	require.NoError(t, err)
	retry, err := middleware.NewDelayedRetry(client, policy)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("handler", queue, sub, func(msg *message.Message) error {
		if string(msg.Payload) == "poison" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		if inFlight > 1 {
			<-time.After(100 * time.Millisecond)
		}
		fmt.Printf("handled %s attempt %d\n", msg.Payload, middleware.Attempt(msg.Context()))
		return nil
	})
	require.NoError(t, router.Run(context.Background()))
}
