package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
)

// incident is a service with a handler, and an engineer on call who knows the broker's URL and
// follows docs/operations.md to the letter.
type incident struct {
	*service
	doc     string
	folder  string
	handled sync.Map // by body
	count   atomic.Int64
}

func newIncident(t *testing.T, handler func(body string) error) *incident {
	t.Helper()
	doc, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	node, api := testbroker.Managed(t, "")
	i := &incident{
		service: &service{t: t, url: onOneHost(t, node.URL(), api), queue: "orders", alone: true},
		doc:     string(doc), folder: t.TempDir(),
	}
	rig.Start(t, rig.Config{
		URL: node.URL(), Queue: i.queue, Policy: backoff.List{200 * time.Millisecond, time.Second},
		Configure: unlimited, RetryOptions: []middleware.Option{
			middleware.WithClassifier(middleware.PermanentErrors(errBroken)),
		},
		Handle: func(msg *message.Message) error {
			if err := handler(string(msg.Payload)); err != nil {
				return err
			}
			if _, twice := i.handled.LoadOrStore(string(msg.Payload), true); !twice {
				i.count.Add(1)
			}
			return nil
		},
	})
	return i
}

var errBroken = errors.New("cannot parse total")

// orders publishes orders.
func (i *incident) orders(from, to int) {
	i.t.Helper()
	for n := from; n < to; n++ {
		i.publish(i.queue, amqp.Publishing{
			MessageId: fmt.Sprint("order-", n), Body: fmt.Appendf(nil, `{"order":%d}`, n),
			DeliveryMode: amqp.Persistent,
		})
	}
}

func (i *incident) awaitDead(n int) {
	i.t.Helper()
	rig.AwaitDepth(i.t, i.url, i.queue+".dlq", n)
}

func (i *incident) awaitHandled(n int64) {
	i.t.Helper()
	testbroker.WaitFor(i.t, fmt.Sprintf("%d orders to be handled", n), patience,
		func() bool { return i.count.Load() == n })
}

// argumentsOf splits a command as a shell does; 'in quotes' is one argument.
func argumentsOf(command string) []string {
	words := strings.Fields(command)[1:]
	var args []string
	for n := 0; n < len(words); n++ {
		word := words[n]
		for strings.HasPrefix(word, "'") && !strings.HasSuffix(word, "'") {
			n++
			word += " " + words[n]
		}
		args = append(args, strings.Trim(word, "'"))
	}
	return args
}

// follow runs a command that the document shows, and returns its output.
func (i *incident) follow(command string) string {
	i.t.Helper()
	require.Contains(i.t, i.doc, "$ "+command+"\n", "docs/operations.md shows it")
	args := argumentsOf(command)
	for n, arg := range args {
		if strings.HasSuffix(arg, ".jsonl") {
			arg = filepath.Join(i.folder, arg)
		}
		args[n] = strings.ReplaceAll(arg, "orders", i.queue)
	}
	o := i.tool(args...)
	require.Zero(i.t, o.code, "%s: %s%s", command, o.out, o.err)
	i.t.Logf("$ %s\n%s%s", command, o.out, o.err)
	return o.out
}

// A deploy breaks the parsing of every order; the next one mends it.
func TestIncidentBadDeploy(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	i := newIncident(t, func(string) error {
		if broken.Load() {
			return fmt.Errorf("order 17: %w", errBroken)
		}
		return nil
	})
	i.orders(0, 5)
	i.awaitHandled(5)
	broken.Store(true)
	i.orders(5, 45)
	i.awaitDead(40)
	status := i.follow("millpond status orders")
	require.Contains(t, status, "orders.dlq")
	require.NotContains(t, status, "critical")
	require.Contains(t, i.follow("millpond dead groups orders"), "order #: cannot parse total")
	i.follow("millpond dead show orders order-5")
	broken.Store(false) // rolled back
	const replay = "millpond dead replay orders --error 'cannot parse total'"
	require.Contains(t, i.follow(replay+" --dry-run"), "would have replayed 40 dead letters of 40")
	require.Contains(t, i.follow(replay+" --limit 1"), "replayed 1 dead letter of 40")
	i.awaitHandled(6)
	require.Contains(t, i.follow(replay+" --rate 50/s"), "replayed 39 dead letters of 39")
	i.awaitHandled(45)
	i.awaitDead(0)
}

// The warehouse is down for longer than the retries last. One letter is tried as a
// canary, comes back, and the others are left alone until the warehouse is up.
func TestIncidentDownstreamOutage(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	down.Store(true)
	i := newIncident(t, func(string) error {
		if down.Load() {
			return errors.New("dial tcp 10.0.0.7:443: connection refused")
		}
		return nil
	})
	i.orders(0, 30)
	i.awaitDead(30)
	require.Contains(t, i.follow("millpond dead list orders --reason exhausted --since 1h --limit 3"),
		"connection refused")
	const replay = "millpond dead replay orders --error 'connection refused'"
	require.Contains(t, i.follow(replay+" --limit 1"), "replayed 1 dead letter of 30")
	i.awaitDead(30) // the canary is back
	var canary letterJSON
	testbroker.WaitFor(t, "the canary's second death", patience, func() bool {
		for line := range strings.Lines(i.follow("millpond dead list orders --json")) {
			require.NoError(t, json.Unmarshal([]byte(line), &canary))
			if canary.Replays == 1 {
				return true
			}
		}
		return false
	})
	require.Equal(t, 3, canary.Attempts, "its attempts began anew")
	down.Store(false)
	require.Contains(t, i.follow(replay+" --rate 20/s"), "replayed 30 dead letters of 30")
	i.awaitHandled(30)
	i.awaitDead(0)
}

// One order can never be handled. It is looked at, kept in a file, thrown away,
// mended by hand and put back.
func TestIncidentPoisonMessage(t *testing.T) {
	t.Parallel()
	i := newIncident(t, func(body string) error {
		if strings.Contains(body, `"order":3}`) {
			panic("index out of range")
		}
		return nil
	})
	i.orders(0, 10)
	i.awaitHandled(9)
	i.awaitDead(1)
	shown := i.follow("millpond dead show orders order-3")
	require.Contains(t, shown, "index out of range")
	require.Contains(t, shown, "\"order\": 3")
	require.Contains(
		t, i.follow("millpond dead discard orders --id order-3 --export poison.jsonl --yes"),
		"discarded 1 dead letter of 1",
	)
	i.awaitDead(0)
	file := filepath.Join(i.folder, "poison.jsonl")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	mended := strings.ReplaceAll(string(data), `\"order\":3}`, `\"order\":3,\"lines\":[]}`)
	require.NotEqual(t, string(data), mended)
	require.NoError(t, os.WriteFile(file, []byte(mended), 0o600))
	require.Equal(t, "1 line confirmed\n", i.follow("millpond dead import orders --file poison.jsonl"))
	i.awaitDead(1)
	require.Contains(t, i.follow("millpond dead replay orders --id order-3"),
		"replayed 1 dead letter of 1")
	i.awaitHandled(10)
	i.awaitDead(0)
}
