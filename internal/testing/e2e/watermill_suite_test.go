package e2e_test

import (
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// TestPubSubStress runs Watermill's suite for Pub/Subs ten times at once, with the features that
// watermill-amqp claims for a Pub/Sub. With MILLPOND_LONG each has all its messages.
func TestPubSubStress(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	group := func(t *testing.T, consumerGroup string) (message.Publisher, message.Subscriber) {
		queue := wamqp.GenerateQueueNameTopicNameWithSuffix(consumerGroup)
		return suitePubSub(t, wamqp.NewDurablePubSubConfig(url, nil),
			wamqp.NewDurablePubSubConfig(url, queue))
	}
	tests.TestPubSubStressTest(t, tests.Features{
		ConsumerGroups: true, GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true,
		Persistent: true, ForceShort: os.Getenv("MILLPOND_LONG") == "",
	}, func(t *testing.T) (message.Publisher, message.Subscriber) { return group(t, "test") }, group)
}

// TestQueueSuite runs the suite with the features that watermill-amqp claims for a queue.
func TestQueueSuite(t *testing.T) {
	t.Parallel()
	cfg := rig.QueueConfig(testbroker.URL(t))
	tests.TestPubSub(t, tests.Features{
		GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true, Persistent: true,
	}, func(t *testing.T) (message.Publisher, message.Subscriber) {
		return suitePubSub(t, cfg, cfg)
	}, nil)
}

// TestQueueSuiteInFlight runs it with eight messages in flight, which keep no order, and with the
// publisher of watermill-amqp.
func TestQueueSuiteInFlight(t *testing.T) {
	t.Parallel()
	cfg := rig.QueueConfig(testbroker.URL(t))
	cfg.Publish.ChannelPoolSize = 25
	tests.TestPubSub(t, tests.Features{Persistent: true},
		func(t *testing.T) (message.Publisher, message.Subscriber) {
			pub, err := wamqp.NewPublisher(cfg, watermill.NopLogger{})
			require.NoError(t, err)
			ours, sub := suitePubSub(t, cfg, cfg, topology.WithConcurrency(8))
			require.NoError(t, ours.Close())
			return pub, sub
		}, nil)
}

func suitePubSub(
	t *testing.T, publish, consume wamqp.Config, options ...topology.SubscriberOption,
) (*topology.Publisher, *topology.Subscriber) {
	t.Helper()
	client := rig.OpenClient(t, publish.Connection.AmqpURI, topology.PerQueue{Type: topology.Classic})
	pub, err := client.NewPublisher(publish)
	require.NoError(t, err)
	sub, err := client.NewSubscriber(consume, append(options,
		topology.ForPolicy(backoff.List{time.Second}), topology.WithDrainTimeout(time.Second))...)
	require.NoError(t, err)
	return pub, sub
}

// reconnecting is set in the process that runs Watermill's TestReconnect.
const reconnecting = "MILLPOND_TEST_RECONNECTING"

// Given ten thousand publishes, some of which a service with retries gets too, when the broker
// restarts twice, then each confirmed message is handled. This is Watermill's TestReconnect. It
// runs in another process, because it notes the published messages in a data race, and leaves a
// goroutine behind. The race detector does not report that race there, but any other.
func TestEveryConfirmedMessageIsHandledAcrossRestarts(t *testing.T) {
	t.Parallel()
	testbroker.RequireNode(t)
	if os.Getenv(reconnecting) != "" {
		reconnect(t)
		return
	}
	known := filepath.Join(t.TempDir(), "known")
	require.NoError(t, os.WriteFile(known, []byte("race_top:"+reconnectTest+".func\n"), 0o600))
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), reconnecting+"=1", "GORACE=suppressions="+known)
	out, err := child.CombinedOutput()
	said := chatter.ReplaceAllString(string(out), "")
	require.NoError(t, err, "%s", said)
	require.Contains(t, said, "all messages (10000/10000) received")
}

// chatter are lines of that process that a failure need not show.
var chatter = regexp.MustCompile(`(?m)^(publishing message|.* info .*)\n`)

func reconnect(t *testing.T) {
	t.Helper()
	node := testbroker.Private(t, rig.QuickDeadLettering)
	// Watermill's test restarts the broker by a command, which asks here through two named pipes.
	folder := t.TempDir()
	ask, answer := filepath.Join(folder, "ask"), filepath.Join(folder, "answer")
	require.NoError(t, exec.CommandContext(t.Context(), "mkfifo", ask, answer).Run())
	var restarts sync.WaitGroup
	restarts.Go(func() {
		for range 2 {
			_, err := os.ReadFile(ask)
			assert.NoError(t, err)
			node.Stop(t)
			node.Start(t)
			assert.NoError(t, os.WriteFile(answer, []byte("up\n"), 0o600))
		}
	})
	sent, handled := rig.NewLedger(), rig.NewLedger()
	service := rig.Start(t, rig.Config{
		URL: node.URL(), Configure: rig.QuorumQueue, Policy: rig.Quickly(5),
		Handle: func(msg *message.Message) error {
			if handled.FailOnce(msg.UUID) {
				return rig.ErrFailed
			}
			handled.Handle(msg.UUID)
			return nil
		},
	})
	log.SetOutput(publishersEnd{t})
	tests.TestReconnect(t, tests.TestContext{
		TestID: tests.NewTestID(),
		Features: tests.Features{
			RestartServiceCommand: []string{"sh", "-c", `echo >"$0" && read -r up <"$1"`, ask, answer},
		},
	}, func(t *testing.T) (message.Publisher, message.Subscriber) {
		cfg := rig.QueueConfig(node.URL())
		ours, sub := suitePubSub(t, cfg, cfg)
		return withRetries{ours, service.Queue, sent}, sub
	})
	if t.Failed() {
		return // the broker may not have been asked to restart
	}
	restarts.Wait()
	require.Greater(t, sent.Count(), 100)
	rig.WaitFor(t, "the retries", func() bool { return handled.Count() == sent.Count() })
	service.Stop()
	require.Zero(t, service.Depth(".dlq"))
}

// withRetries publishes every sixteenth message to the queue of a service as well.
type withRetries struct {
	message.Publisher
	queue string
	sent  *rig.Ledger // of the confirmed messages for the service
}

func (p withRetries) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		if !strings.HasSuffix(msg.UUID, "7") {
			continue
		}
		if err := p.Publisher.Publish(p.queue, msg); err != nil {
			return err
		}
		p.sent.Handle(msg.UUID)
	}
	return p.Publisher.Publish(topic, messages...)
}

const reconnectTest = "github.com/ThreeDotsLabs/watermill/pubsub/tests.TestReconnect"

// publishersEnd is the log of Watermill's test. The test logs once, when it has received all
// messages, and then compares them with the noted ones. But a message may be received before its
// publisher has got the confirm and noted it. So the log takes its line when only the goroutine
// that notes them is left, and has nothing to do.
type publishersEnd struct{ t *testing.T }

func (l publishersEnd) Write(line []byte) (int, error) {
	stacks := make([]byte, 1<<20)
	rig.WaitFor(l.t, "the publishers to end", func() bool {
		var left []string
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "created by "+reconnectTest+" in ") {
				left = append(left, stack)
			}
		}
		return len(left) == 1 && strings.Contains(left[0], " [chan receive")
	})
	fmt.Fprintf(os.Stderr, "%s", line)
	return len(line), nil
}
