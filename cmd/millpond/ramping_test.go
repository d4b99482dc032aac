package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// stops runs a command that the document shows and that stops, and returns its output.
func (i *oncall) stops(command string) string {
	i.t.Helper()
	require.Contains(i.t, i.doc, "$ "+command+"\n", "docs/operations.md shows it")
	args := argumentsOf(strings.ReplaceAll(command, "orders", i.queue))
	o := i.tool(args...)
	require.Equal(i.t, exitRefused, o.code, "%s: %s%s", command, o.out, o.err)
	i.t.Logf("$ %s\n%s%s", command, o.out, o.err)
	return o.out + o.err
}

// The warehouse is still down. A ramp costs its canary; later the same command goes on, and the
// automatic replay has nothing left to do.
func TestIncidentRamp(t *testing.T) {
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
	const replay = "millpond dead replay orders --error 'connection refused'"
	rehearsed := i.follow(replay + " --dry-run")
	require.Contains(t, rehearsed, "would have replayed 30 dead letters of 30; nothing was changed\n")
	require.Contains(t, rehearsed, "which has 1 consumer and 0 ready messages\n")
	require.NotContains(t, rehearsed, "critical")
	ramp := replay + " --canary 3 --ramp 1,10 --rate 50/s --stop-at 5%"
	stopped := i.stops(ramp)
	require.Contains(t, stopped, "too many of the replayed letters are dead again: ")
	require.Contains(t, stopped, "started 30 = handled 0 + dead again 3 + waiting 0 + left 27\n")
	require.Contains(t, stopped, "canary …\n")
	require.NotContains(t, stopped, "step 1")
	down.Store(false)
	require.Contains(t, i.follow(ramp),
		"started 30 = handled 30 + dead again 0 + waiting 0 + left 0\n")
	i.AwaitHandled(30)
	const automatic = "millpond dead replay orders --all --every 10m --until-empty"
	require.Contains(t, i.follow(automatic), "started 0 = ")
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

	o = s.tool("dead", "replay", s.queue, "--all", "--policy", "1s,10s", "--canary", "2",
		"--watch", "200ms", "--settle", "100ms", "--json")
	require.Equal(t, exitRefused, o.code)
	var j map[string]any
	require.NoError(t, json.Unmarshal([]byte(o.out), &j), o.out)
	require.Contains(t, j["error"], "still open")
	delete(j, "error")
	delete(j, "run")
	require.Equal(t, "orders", j["queue"])
	delete(j, "queue")
	require.Equal(t, map[string]any{
		"step": "canary", "started": 3.0, "handled": 0.0, "dead_again": 0.0, "waiting": 0.0,
		"unsettled": 2.0, "left": 1.0, "at_handler": nil,
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
	child.Env = append(os.Environ(), "MILLPOND_TEST_TOOL=1")
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
