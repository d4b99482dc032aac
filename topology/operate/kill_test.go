package operate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// killed tells this test binary to be the process that is killed: a command, a
// kind of queue, the queue and a file.
const killed = "MILLPOND_TEST_KILLED"

// repair is the edit of a replay.
func repair(_ operate.Letter, msg *amqp.Publishing) error {
	msg.Body = append([]byte("repaired "), msg.Body...)
	return nil
}

// beKilled runs a command, and says how far it is.
func beKilled(words []string) error {
	command, kind, queue, file := words[0], words[1], words[2], words[3]
	after, err := strconv.Atoi(words[4])
	if err != nil {
		return err
	}
	// It kills itself (-9) when it has done so many, so that nothing of it goes on.
	tell := func(done int) {
		if done >= after {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	ctx := context.Background()
	strategy := topology.PerQueue{Type: topology.QueueType(kind)}
	o, err := operate.Open(ctx, os.Getenv("AMQP_URL"), operate.WithoutPolicyCheck())
	if err != nil {
		return err
	}
	plan, err := topology.PlanFor(strategy, queue)
	if err != nil {
		return err
	}
	progress := func(p operate.Progress) {
		if p.Done > 0 {
			tell(p.Done)
		}
	}
	options := operate.MoveOptions{Progress: progress}
	var delays []time.Duration
	switch command {
	case "edit":
		options.Edit = repair
	case "discard", "discard stranded":
		options.KeepIn, err = os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	case "ramp":
		delays = []time.Duration{time.Second, time.Hour}
	case "release", "cancel":
		delays = []time.Duration{time.Hour}
	}
	if err != nil {
		return err
	}
	if delays != nil {
		if plan, err = strategy.Plan(queue, delays); err != nil {
			return err
		}
	}
	switch command {
	case "return":
		_, err = o.ReturnStranded(ctx, plan.Dead.RoutingKey, options)
	case "discard stranded":
		_, err = o.DiscardStranded(ctx, plan.Dead.RoutingKey, options)
	case "replay", "edit":
		_, err = o.Replay(ctx, plan, options)
	case "ramp":
		_, err = o.Ramp(ctx, plan, operate.RampOptions{MoveOptions: options, Canary: -1})
	case "discard":
		_, err = o.Discard(ctx, plan, options)
	case "release":
		_, err = o.Release(ctx, plan, options)
	case "cancel":
		_, err = o.Cancel(ctx, plan, options)
	case "import":
		f, openErr := os.Open(file)
		if openErr != nil {
			return openErr
		}
		_, err = o.Import(ctx, plan, f, operate.ImportOptions{Progress: tell})
	case "list":
		for l, listErr := range o.Dead(ctx, plan, operate.Filter{}, 0) {
			if err = listErr; err == nil {
				tell(l.Position)
			}
		}
	}
	return err
}

// killInTheMiddle runs a command in another process, which is killed (-9) when it has
// done so many messages. ended says that it had ended before.
func (b *box) killInTheMiddle(command, kind, file string, after int) (ended bool) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), rig.Patience)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestKilledInTheMiddle$")
	child.Env = append(os.Environ(),
		killed+"="+strings.Join([]string{command, kind, b.queue, file, strconv.Itoa(after)}, "|"),
		"AMQP_URL="+b.url)
	said, err := child.CombinedOutput()
	if err != nil {
		require.EqualError(b.t, err, "signal: killed", "%s", said)
	}
	require.NoError(b.t, ctx.Err())
	return err == nil
}

// count counts bodies, in a queue or a file.
func count(into map[string]int, bodies []string) {
	for _, body := range bodies {
		into[strings.TrimPrefix(body, "repaired ")]++
	}
}

// requireEach requires each of n messages, and no more copies than the page of the tool says.
func requireEach(t testing.TB, counts map[string]int, n, most int) {
	t.Helper()
	copies := -n
	for _, body := range numbered(0, n) {
		require.GreaterOrEqual(t, counts[body], 1, "%s is lost", body)
		copies += counts[body]
	}
	t.Logf("%d messages, none lost, %d copies of at most %d", n, copies, most)
	require.LessOrEqual(t, copies, most)
}

// Every command that moves or deletes is killed five times in the middle, and then
// ends: each message is where it belongs, with no more copies than docs/operations.md says.
func TestKilledInTheMiddle(t *testing.T) {
	if words := os.Getenv(killed); words != "" {
		if err := beKilled(strings.Split(words, "|")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	t.Parallel()
	kills := 2
	if os.Getenv("MILLPOND_LONG") != "" {
		kills = 5
	}
	for _, kind := range types {
		for _, command := range []string{
			"replay", "ramp", "edit", "discard", "import", "list", "release", "cancel", "return",
			"discard stranded",
		} {
			t.Run(string(kind)+" "+command, func(t *testing.T) {
				t.Parallel()
				b := newBox(t, kind)
				step := 300 // in the middle of a batch of 64
				switch command {
				case "edit", "release", "cancel": // slow ones; waiting messages are held for 5 s at most
					step = 100
				case "discard", "discard stranded":
					step = 256 // the end of a batch
				}
				n := step*kills + 100
				most := 64 * kills
				file := filepath.Join(t.TempDir(), "letters")
				switch command {
				case "release", "cancel":
					b.delayBy(time.Hour)
					b.strand(b.waits(time.Hour).Name, n)
				case "return", "discard stranded":
					b.strand(b.dead, n)
				default:
					b.die(n)
				}
				if command == "import" {
					f, err := os.Create(file)
					require.NoError(t, err)
					_, err = operate.Export(f, b.Dead(t.Context(), b.plan, operate.Filter{}, 0))
					require.NoError(t, errors.Join(err, f.Close()))
					require.Len(t, b.bodies(b.dead, n), n)
				}
				for range kills {
					require.False(t, b.killInTheMiddle(command, string(kind), file, step), "killed in the middle")
				}
				// Messages of the killed processes come back when the broker notices.
				counts := map[string]int{}
				all := func(queues ...string) {
					testbroker.WaitFor(t, "all messages where they belong", rig.Patience, func() bool {
						var err error
						switch command {
						case "replay", "ramp":
							_, err = b.Replay(t.Context(), b.plan, operate.MoveOptions{})
						case "edit":
							_, err = b.Replay(t.Context(), b.plan, operate.MoveOptions{Edit: repair})
						case "return":
							_, err = b.ReturnStranded(t.Context(), b.dead, operate.MoveOptions{})
						}
						require.NoError(t, err)
						for _, queue := range queues {
							count(counts, b.bodies(queue, 0))
						}
						return len(counts) == n
					})
				}
				switch command {
				case "replay", "ramp", "edit", "return":
					all(b.queue)
					if command == "edit" {
						originals := map[string]int{}
						count(originals, b.bodies(b.dead+".originals", n))
						requireEach(t, originals, n, most)
					}
				case "release":
					all(b.queue, b.waits(time.Hour).Name)
				case "cancel":
					all(b.dead, b.waits(time.Hour).Name)
				case "discard", "discard stranded":
					testbroker.WaitFor(t, "all letters in the queue or the file", rig.Patience, func() bool {
						clear(counts)
						data, err := os.ReadFile(file)
						require.NoError(t, err)
						for line := range bytes.Lines(data) {
							if d, err := operate.Decode(line); err == nil {
								counts[string(d.Body)]++
							}
						}
						for _, l := range b.letters(operate.Filter{}) {
							counts[string(l.Delivery.Body)]++
						}
						return len(counts) == n
					})
				case "import":
					most = n * kills // it begins at the first line again
					require.True(t, b.killInTheMiddle(command, string(kind), file, n+1), "ended")
					count(counts, b.bodies(b.dead, n))
				case "list":
					b.depth(b.dead, n)
					count(counts, b.bodies(b.dead, n))
					require.Len(t, counts, n)
					for body, times := range counts {
						require.Equal(t, 1, times, body)
					}
				}
				requireEach(t, counts, n, most)
			})
		}
	}
}
