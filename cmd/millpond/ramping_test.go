package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology/operate"
)

// The warehouse is still down. A ramp costs its canary; later the same command goes on, and the
// automatic replay has nothing left to do.
func TestIncidentRamp(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	down.Store(true)
	h := newHouse(t)
	i := h.Orders(rig.Config{Policy: backoff.List{200 * time.Millisecond, time.Second}},
		func(string) error {
			if down.Load() {
				return errors.New("dial tcp 10.0.0.7:443: connection refused")
			}
			return nil
		})
	i.Place(0, 30)
	i.AwaitDead(30)
	replay := []string{"dead", "replay", "orders", "--error", "connection refused"}
	o := h.ask(append(replay, "--dry-run")...)
	require.Equal(t, exitDone, o.code, o.err)
	require.Equal(t, "would have replayed 30 dead letters of 30; nothing was changed\n"+
		"to queue \"orders\", which has 1 consumer and 0 ready messages\n", o.out)
	ramp := slices.Concat(replay, []string{
		"--canary", "3", "--ramp", "1,10", "--rate", "50/s", "--stop-at", "5%",
	})
	o = h.ask(ramp...)
	require.Equal(t, exitRefused, o.code, o.err)
	require.Contains(t, o.out, "started 30 = handled 0 + dead again 3 + waiting 0 + left 27\n")
	require.Contains(t, o.err, "too many of the replayed letters are dead again: ")
	require.Contains(t, o.err, "canary …\n")
	require.NotContains(t, o.err, "step 1")
	down.Store(false)
	o = h.ask(ramp...)
	require.Contains(t, o.out, "started 30 = handled 30 + dead again 0 + waiting 0 + left 0\n", o.err)
	i.AwaitHandled(30)
	o = h.ask("dead", "replay", "orders", "--all", "--every", "10m", "--until-empty")
	require.Equal(t, exitDone, o.code, o.err)
	require.Contains(t, o.out, "started 0 = ")
}

// Each flag that makes no sense is refused before anything is done, and JSON has all counts.
func TestRampFlags(t *testing.T) {
	t.Parallel()
	s := newService(t, "classic")
	s.die()
	for _, flags := range []string{
		"--canary -1", "--ramp 1,x", "--ramp 0", "--stop-at 5", "--stop-at x%", "--stop-at 101%",
		"--settle -1s", "--watch 0s", "--every 0s", "--until-empty", "--max-replays -1",
		"--canary 1 --id #1", "--settle 2m", "--canary 1 --to other", "--every 1ms",
	} {
		o := s.tool(append([]string{"dead", "replay", s.queue, "--policy", "1s,10s", "--limit", "9"},
			strings.Fields(flags)...)...)
		require.Equal(t, exitUsage, o.code, "%s: %s%s", flags, o.out, o.err)
	}
	// The wait queues of another policy cannot be watched.
	o := s.tool("dead", "replay", s.queue, "--all", "--policy", "1s,30s", "--canary", "1")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.err, "millpond --policy")
	o = s.tool("dead", "replay", s.queue, "--canary", "1", "--id", "none", "--policy", "1s,10s")
	require.Equal(t, exitFound, o.code)
	require.Equal(t, 3, testbroker.Depth(t, s.url, s.queue+".dlq"))

	o = s.tool("dead", "replay", s.queue, "--all", "--policy", "1s,10s", "--dry-run", "--json")
	require.Equal(t, exitFound, o.code, "no consumer")
	rehearsed := decoded[rehearsedJSON](t, o.out)[0]
	require.True(t, rehearsed.DryRun)
	require.Equal(t, 3, rehearsed.Chosen)
	require.Equal(t, operate.Count{Source: operate.SourceAMQP}, rehearsed.Consumers)
	require.Equal(t, operate.Unconsumed, rehearsed.Findings[0].Problem)

	o = s.tool("dead", "replay", s.queue, "--all", "--policy", "1s,10s", "--canary", "2",
		"--watch", "200ms", "--settle", "100ms", "--json")
	require.Equal(t, exitRefused, o.code)
	j := decoded[map[string]any](t, o.out)[0]
	require.Contains(t, j["error"], "still open")
	delete(j, "error")
	delete(j, "run")
	require.Equal(t, "orders", j["queue"])
	delete(j, "queue")
	require.Equal(t, map[string]any{
		"step": "canary", "started": 3.0, "handled": 0.0, "dead_again": 0.0, "waiting": 0.0,
		"unsettled": 2.0, "left": 1.0, "at_handler": map[string]any{"n": -1.0, "source": ""},
	}, j)
}

// Given an interrupt in the middle, then the tool finishes the work that it has begun, prints
// where each letter is, and ends with 130.
func TestInterruptedRamp(t *testing.T) {
	t.Parallel()
	s := newService(t, "quorum")
	s.publish(s.queue+".dlq", shop.Numbered(0, 200)...)
	rig.AwaitDepth(t, s.url, s.queue+".dlq", 200)
	child := exec.Command(os.Args[0], "--url", s.url, "--no-policies", "dead", "replay", s.queue,
		"--all", "--policy", "1s,10s", "--canary", "0", "--rate", "20/s")
	child.Env = append(os.Environ(), "MILLPOND_TEST_TOOL=1", "HOME=")
	var out, errs bytes.Buffer
	child.Stdout, child.Stderr = &out, &errs
	require.NoError(t, child.Start())
	rig.WaitFor(t, "ten letters to be replayed", func() bool {
		return testbroker.Depth(t, s.url, s.queue) >= 10
	})
	require.NoError(t, child.Process.Signal(syscall.SIGINT))
	_ = child.Wait()
	require.Equal(t, exitInterrupted, child.ProcessState.ExitCode(), "%s%s", &out, &errs)
	sum := regexp.MustCompile(
		`started 200 = handled 0 \+ dead again 0 \+ waiting 0 \+ unsettled (\d+) \+ left (\d+)\n`).
		FindStringSubmatch(out.String())
	require.NotNil(t, sum, out.String())
	require.Equal(t, sum[1], fmt.Sprint(testbroker.Depth(t, s.url, s.queue)))
	require.Equal(t, sum[2], fmt.Sprint(testbroker.Depth(t, s.url, s.queue+".dlq")))
}
