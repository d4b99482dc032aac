package job_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/cmd/millpond/page/internal/job"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// mortalServer tells this test binary to be the server that is killed: a kind of action, a kind of
// queue, the queue, and the folder.
const mortalServer = "MILLPOND_TEST_SERVER"

// beServer opens a Manager, resumes the action that the server before has left, or begins one, and
// prints its progress.
func beServer(words []string) {
	if err := serve(words); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(words []string) error {
	kind, queue, folder := job.Kind(words[0]), words[2], words[3]
	ctx := context.Background()
	o, err := operate.Open(ctx, os.Getenv("AMQP_URL"), operate.WithoutPolicyCheck())
	if err != nil {
		return err
	}
	strategy := topology.PerQueue{Type: topology.QueueType(words[1])}
	plan := func(_ context.Context, queue string) (topology.Plan, error) {
		return topology.PlanFor(strategy, queue, backoff.List{time.Second, time.Hour})
	}
	m, err := job.Open(job.Options{
		Operator: func(context.Context) (*operate.Operator, error) { return o, nil },
		Plan:     plan, Folder: folder,
	})
	if err != nil {
		return err
	}
	var h job.Rehearsal
	switch last := m.Actions(); {
	case len(last) > 0 && last[0].Resumable():
		h, err = m.Resume(ctx, "alice", last[0].ID)
	default:
		h, err = m.Rehearse(ctx, "alice", job.Request{
			Kind: kind, Queue: queue, Filter: operate.Filter{Error: refused},
			Settle: map[bool]time.Duration{true: 300 * time.Millisecond}[kind == job.Replay],
			Watch:  map[bool]time.Duration{true: time.Second}[kind == job.Replay],
		})
	}
	if err != nil {
		return err
	}
	fmt.Println("rehearsed", h.Count)
	if _, err := m.Start("alice", h.ID, h.Digest); err != nil {
		return err
	}
	for ; ; time.Sleep(time.Millisecond) {
		a, err := m.Action(h.ID)
		if err != nil {
			return err
		}
		fmt.Println("done", a.Progress.Done)
		if a.State == job.StateDone {
			return errors.Join(m.Close(), o.Close())
		} else if !a.Active() {
			return fmt.Errorf("%s: %s", a.State, a.Error)
		}
	}
}

// server runs the server until it has done so many messages, and kills it (-9). It returns the
// number that was rehearsed. ended says that the action has ended before.
func (y *yard) server(kind job.Kind, after int) (rehearsed int, ended bool) {
	y.t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^$")
	child.Env = append(os.Environ(), "AMQP_URL="+y.url, mortalServer+"="+strings.Join([]string{
		string(kind), string(y.strategy.Type), y.queue, y.folder,
	}, "|"))
	out, err := child.StdoutPipe()
	require.NoError(y.t, err)
	var errs bytes.Buffer
	child.Stderr = &errs
	require.NoError(y.t, child.Start())
	limit := time.AfterFunc(rig.Patience, func() { _ = child.Process.Signal(syscall.SIGKILL) })
	defer limit.Stop()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		done := 0
		_, _ = fmt.Sscanf(lines.Text(), "rehearsed %d", &rehearsed)
		if _, err := fmt.Sscanf(lines.Text(), "done %d", &done); err == nil && done >= after {
			_ = child.Process.Signal(syscall.SIGKILL)
			break
		}
	}
	err = child.Wait()
	require.Empty(y.t, errs.String(), err)
	return rehearsed, err == nil
}

// killed kills the server five times in the middle of an action, looks at the next one, and lets
// that finish.
func (y *yard) killed(kind job.Kind, after int, source string) {
	y.t.Helper()
	require.NoError(y.t, y.Close())
	kills := 0
	for ended := false; !ended; {
		wait := after
		if kills == 5 {
			wait = 1 << 30
		}
		var rehearsed int
		rehearsed, ended = y.server(kind, wait)
		if ended {
			break
		}
		kills++
		require.NotContains(y.t, y.journal(), "body ")

		// The page after a restart.
		y.open()
		a := y.Actions()[0]
		require.Equal(y.t, job.StateInterrupted, a.State, a.Error)
		require.Equal(y.t, rehearsed, a.Count)
		require.LessOrEqual(y.t, a.Progress.Done, rehearsed)
		a = y.await(a.ID, "the count of its queue", func(a job.Action) bool { return a.There != nil })
		require.Contains(y.t, a.Outcome(), fmt.Sprintf("are in queue %q", source))
		rig.WaitFor(y.t, "the letters that the dead server held", func() bool {
			h, err := y.Resume(y.t.Context(), "alice", a.ID)
			require.NoError(y.t, err)
			left := testbroker.Depth(y.t, y.url, source)
			return left == h.Count
		})
		require.NoError(y.t, y.Close())
	}
	require.Equal(y.t, 5, kills)
	y.open()
	require.Equal(y.t, job.StateDone, y.Actions()[0].State)
}

// Five kills in the middle of a replay lose nothing, and double few letters.
func TestServerKilledInAReplay(t *testing.T) {
	t.Parallel()
	const n, batch = 5000, 64
	y := newYard(t, "")
	y.die(0, n, refused)
	y.killed(job.Replay, 400, y.dead)
	y.depth(y.dead, 0)
	y.requireAll(n, 5*batch, rig.Bodies(y.drain(y.queue, n)))

	log, err := os.ReadFile(filepath.Join(y.folder, "audit.jsonl"))
	require.NoError(t, err)
	require.Equal(t, 6, strings.Count(string(log), `"event":"started"`))
	require.Equal(t, 5, strings.Count(string(log), `"event":"interrupted"`))
	require.Equal(t, 1, strings.Count(string(log), `"event":"done"`))
}

func TestServerKilledInADiscard(t *testing.T) {
	t.Parallel()
	const n, batch = 3000, 200
	y := newYard(t, "")
	y.die(0, n, refused)
	y.killed(job.Discard, 200, y.dead)
	y.depth(y.dead, 0)
	var found []string
	files, err := filepath.Glob(filepath.Join(y.folder, "discarded", "*.jsonl"))
	require.NoError(t, err)
	require.Len(t, files, 6)
	for _, name := range files {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		for line := range strings.SplitSeq(string(data), "\n") {
			if d, err := operate.Decode([]byte(line)); err == nil { // a kill may cut off the last
				found = append(found, string(d.Body))
			}
		}
	}
	y.requireAll(n, 5*batch, found)
}

// requireAll requires every letter, and few of them twice.
func (y *yard) requireAll(n, twice int, found []string) {
	y.t.Helper()
	count := map[string]int{}
	for _, body := range found {
		count[body]++
	}
	lost := 0
	for _, body := range numbered(0, n) {
		if count[body] == 0 {
			lost++
		}
	}
	y.t.Logf("%d letters: lost %d, doubled %d", n, lost, len(found)-len(count))
	require.Zero(y.t, lost)
	require.Len(y.t, count, n)
	require.LessOrEqual(y.t, len(found)-len(count), twice)
}
