package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology/operate"
)

// oncall is an engineer who follows docs/operations.md to the letter.
type oncall struct {
	*service
	doc    string
	folder string // of files that commands write
}

func newOncall(s *service) *oncall {
	s.t.Helper()
	doc, err := os.ReadFile("../../docs/operations.md")
	require.NoError(s.t, err)
	return &oncall{s, string(doc), s.t.TempDir()}
}

// incident is a service of orders, and an engineer on call who knows the broker's URL.
type incident struct {
	*oncall
	*shop.Orders
}

func newIncident(t *testing.T, handler func(body string) error) *incident {
	t.Helper()
	h := newHouse(t)
	c := rig.Config{Policy: backoff.List{200 * time.Millisecond, time.Second}}
	return &incident{
		newOncall(&service{t: t, url: h.url, queue: "orders", alone: true}), h.Orders(c, handler),
	}
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
func (i *oncall) follow(command string) string {
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
			return fmt.Errorf("order 17: %w", shop.ErrBroken)
		}
		return nil
	})
	i.Place(0, 5)
	i.AwaitHandled(5)
	broken.Store(true)
	i.Place(5, 45)
	i.AwaitDead(40)
	status := i.follow("millpond status orders")
	require.Contains(t, status, "orders.dlq")
	require.NotContains(t, status, "critical")
	require.Contains(t, i.follow("millpond dead groups orders"), "order #: cannot parse total")
	i.follow("millpond dead show orders order-5")
	broken.Store(false) // rolled back
	const replay = "millpond dead replay orders --error 'cannot parse total'"
	require.Contains(t, i.follow(replay+" --dry-run"), "would have replayed 40 dead letters of 40")
	require.Contains(t, i.follow(replay+" --limit 1"), "replayed 1 dead letter of 40")
	i.AwaitHandled(6)
	require.Contains(t, i.follow(replay+" --rate 50/s"), "replayed 39 dead letters of 39")
	i.AwaitHandled(45)
	i.AwaitDead(0)
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
	i.Place(0, 30)
	i.AwaitDead(30)
	require.Contains(t, i.follow("millpond dead list orders --reason exhausted --since 1h --limit 3"),
		"connection refused")
	const replay = "millpond dead replay orders --error 'connection refused'"
	require.Contains(t, i.follow(replay+" --limit 1"), "replayed 1 dead letter of 30")
	i.AwaitDead(30) // the canary is back
	var canary operate.Letter
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
	i.AwaitHandled(30)
	i.AwaitDead(0)
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
	i.Place(0, 10)
	i.AwaitHandled(9)
	i.AwaitDead(1)
	shown := i.follow("millpond dead show orders order-3")
	require.Contains(t, shown, "index out of range")
	require.Contains(t, shown, "\"order\": 3")
	require.Contains(
		t, i.follow("millpond dead discard orders --id order-3 --export poison.jsonl --yes"),
		"discarded 1 dead letter of 1",
	)
	i.AwaitDead(0)
	file := filepath.Join(i.folder, "poison.jsonl")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	mended := strings.ReplaceAll(string(data), `\"order\":3}`, `\"order\":3,\"lines\":[]}`)
	require.NotEqual(t, string(data), mended)
	require.NoError(t, os.WriteFile(file, []byte(mended), 0o600))
	require.Equal(t, "1 line confirmed\n", i.follow("millpond dead import orders --file poison.jsonl"))
	i.AwaitDead(1)
	require.Contains(t, i.follow("millpond dead replay orders --id order-3"),
		"replayed 1 dead letter of 1")
	i.AwaitHandled(10)
	i.AwaitDead(0)
}
