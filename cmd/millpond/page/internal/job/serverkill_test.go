package job_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
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

// mortalServer tells this test binary to be the server that is killed: the queue and the folder.
const mortalServer = "MILLPOND_TEST_SERVER"

// beServer opens a Manager, resumes the discard that the server before has left, or begins one, and
// prints its progress.
func beServer(queue, folder string) error {
	ctx := context.Background()
	o, err := operate.Open(ctx, os.Getenv("AMQP_URL"), operate.WithoutPolicyCheck())
	if err != nil {
		return err
	}
	m, err := job.Open(job.Options{
		Operator: func(context.Context) (*operate.Operator, error) { return o, nil },
		Plan: func(_ context.Context, queue string) (topology.Plan, error) {
			return topology.PlanFor(topology.PerQueue{}, queue, backoff.List{time.Second, time.Hour})
		},
		Folder: folder,
	})
	if err != nil {
		return err
	}
	var h job.Rehearsal
	if last := m.Actions(); len(last) > 0 && last[0].Resumable() {
		h, err = m.Resume(ctx, "alice", last[0].ID, nil)
	} else {
		h, err = m.Rehearse(ctx, "alice", job.Request{
			Kind: job.Discard, Queue: queue, Filter: operate.Filter{Error: refused},
		}, nil)
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
// number that was rehearsed.
func (y *yard) server(after int) (rehearsed int) {
	y.t.Helper()
	ctx, kill := context.WithTimeout(y.t.Context(), rig.Patience)
	defer kill()
	child := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
	child.Env = append(os.Environ(), "AMQP_URL="+y.url, mortalServer+"="+y.queue+"|"+y.folder)
	out, err := child.StdoutPipe()
	require.NoError(y.t, err)
	var errs bytes.Buffer
	child.Stderr = &errs
	require.NoError(y.t, child.Start())
	for lines := bufio.NewScanner(out); lines.Scan(); {
		done := 0
		_, _ = fmt.Sscanf(lines.Text(), "rehearsed %d", &rehearsed)
		if _, err := fmt.Sscanf(lines.Text(), "done %d", &done); err == nil && done >= after {
			kill()
		}
	}
	err = child.Wait()
	require.Empty(y.t, errs.String(), err)
	return rehearsed
}

// Two kills in the middle of a discard lose nothing, and double few letters. The page after a
// restart says how far the action was, and the next server goes on with it.
func TestServerKilledInADiscard(t *testing.T) {
	t.Parallel()
	const n, batch, kills = 3000, 200, 2
	y := newYard(t, "")
	y.die(0, n, refused)
	require.NoError(t, y.Close())
	for range kills {
		rehearsed := y.server(200)
		require.NotContains(t, strings.Join(y.texts("actions/*.json"), ""), "body ")
		y.open()
		a := y.Actions()[0]
		require.Equal(t, job.StateInterrupted, a.State, a.Error)
		require.Equal(t, rehearsed, a.Count)
		require.LessOrEqual(t, a.Progress.Done, rehearsed)
		rig.WaitFor(t, "the letters that the dead server held", func() bool {
			h, err := y.Resume(t.Context(), "alice", a.ID, nil)
			require.NoError(t, err)
			return testbroker.Depth(t, y.url, y.dead) == h.Count
		})
		require.NoError(t, y.Close())
	}
	y.server(n)
	y.open()
	require.Equal(t, job.StateDone, y.Actions()[0].State)
	y.depth(y.dead, 0)
	log := y.texts("audit.jsonl")[0]
	for event, times := range map[string]int{"started": kills + 1, "interrupted": kills, "done": 1} {
		require.Equal(t, times, strings.Count(log, `"event":"`+event+`"`), event)
	}
	found, total := map[string]bool{}, 0
	files := y.texts("discarded/*.jsonl")
	require.Len(t, files, kills+1)
	for _, text := range files {
		for line := range strings.SplitSeq(text, "\n") {
			if d, err := operate.Decode([]byte(line)); err == nil { // a kill may cut off the last
				found[string(d.Body)] = true
				total++
			}
		}
	}
	t.Logf("%d letters: lost %d, doubled %d", n, n-len(found), total-len(found))
	require.Len(t, found, n)
	require.LessOrEqual(t, total-n, kills*batch)
}
