package job_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/page/internal/job"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

func TestReplayIsRehearsedAndConfirmed(t *testing.T) {
	t.Parallel()
	y := newYard(t, "")
	y.die(0, 30, refused)
	y.die(30, 10, "no stock")
	handled := y.consume()

	r := quick(operate.Filter{Error: refused})
	r.Canary, r.Steps, r.StopAt = 3, []int{10}, 0.05
	r.Watch = rig.Patience
	r.Queue = y.queue
	tab, closeTab := context.WithCancel(t.Context())
	h, err := y.Rehearse(tab, "alice", r, nil)
	require.NoError(t, err)
	require.Equal(t, 30, h.Count)
	require.Equal(t, 40, h.Found.Total)
	require.Contains(t, h.Words, `Replay 30 dead letters of queue "`+y.queue+
		`", error="connection refused"; the first 3 are watched before the others go; `+
		`in steps of 10; stop when more than 5 % are dead again`)
	require.Equal(t, 1, h.Found.Consumers.N)
	y.depth(y.dead, 40) // nothing was moved

	other := y.rehearse(job.Request{Kind: job.Replay, All: true})
	_, err = y.Start("alice", h.ID, other.Digest)
	require.ErrorIs(t, err, job.ErrDigest)
	_, err = y.Start("alice", h.ID, "")
	require.ErrorIs(t, err, job.ErrDigest)
	_, err = y.Start("bob", h.ID, h.Digest)
	require.ErrorIs(t, err, job.ErrDigest)
	y.depth(y.dead, 40)

	y.confirm(h)
	closeTab() // the action goes on
	_, err = y.Start("alice", h.ID, h.Digest)
	require.ErrorIs(t, err, job.ErrState, "a rehearsal is confirmed once")
	a := y.ended(h.ID)
	require.Equal(t, job.StateDone, a.State, a.Error)
	ramp := a.Progress.Ramp
	require.Equal(t, 30, ramp.Started)
	require.Equal(t, ramp.Started, ramp.Handled+ramp.DeadAgain+ramp.Waiting+ramp.Unsettled+ramp.Left)
	require.Equal(t, 30, ramp.Handled)
	var got []string
	for range 30 {
		got = append(got, rig.Await(t, handled))
	}
	require.ElementsMatch(t, numbered(0, 30), got)
	y.holds(y.dead, numbered(30, 10)...)

	log := y.texts("audit.jsonl")[0]
	lines := strings.Split(strings.TrimSpace(log), "\n")
	require.Len(t, lines, 2, log)
	for i, event := range []string{"started", "done"} {
		for _, want := range []string{
			`"event":"` + event, `"who":"alice"`, `"action":"` + h.ID, `"kind":"replay"`,
			`"queue":"` + y.queue, `"count":30`, `connection refused`,
		} {
			require.Contains(t, lines[i], want)
		}
	}
	require.Contains(t, lines[1], `"done":30`)
	require.NotContains(t, log, "body")
}

func TestNothingIsDoneWithoutAFilterOrAMatch(t *testing.T) {
	t.Parallel()
	y := newYard(t, topology.Classic)
	y.die(0, 3, refused)
	for _, kind := range []job.Kind{job.Replay, job.Discard, job.Release, job.Cancel} {
		_, err := y.Rehearse(t.Context(), "alice", job.Request{Kind: kind, Queue: y.queue}, nil)
		require.ErrorIs(t, err, job.ErrNoFilter, kind)
	}
	for _, r := range []job.Request{ // a filter is never passed over
		{Kind: job.Replay, Queue: y.queue, All: true, Filter: operate.Filter{Error: "x"}},
		{Kind: job.Release, Queue: y.queue, Filter: operate.Filter{Reason: "exhausted"}},
	} {
		_, err := y.Rehearse(t.Context(), "alice", r, nil)
		require.ErrorIs(t, err, job.ErrRequest, r.Kind)
	}
	for _, kind := range []job.Kind{job.Replay, job.Discard} {
		h := y.rehearse(job.Request{Kind: kind, Filter: operate.Filter{Error: "nowhere"}})
		require.Zero(t, h.Count)
		_, err := y.Start("alice", h.ID, h.Digest)
		require.ErrorIs(t, err, job.ErrNothing)
	}
	y.holds(y.dead, numbered(0, 3)...)
	y.depth(y.queue, 0)
}

func TestAsManyAsWereRehearsed(t *testing.T) {
	t.Parallel()
	y := newYard(t, topology.Classic)
	y.die(0, 5, refused)
	h := y.rehearse(quick(operate.Filter{Error: refused}))
	y.die(5, 5, refused)
	y.does(h, 5)
	y.holds(y.queue, numbered(0, 5)...)
	h = y.rehearse(quick(operate.Filter{Error: refused}))
	y.holds(y.dead, numbered(5, 5)...)
	y.die(10, 3, refused)
	require.Equal(t, "done: 3 of 5; the others stay, or were not there any more",
		y.does(h, 3).Outcome())
	y.holds(y.queue, numbered(10, 3)...)

	other := y.queue + ".test"
	rig.DeclareQueue(t, y.url, other, nil)
	y.die(0, 5, refused)
	h = y.rehearse(job.Request{Kind: job.Replay, All: true, To: other, Rate: 1000})
	require.Contains(t, h.Words, "all that are there; they go to queue")
	y.does(h, 5)
	y.holds(other, numbered(0, 5)...)
}

func TestStopAndResume(t *testing.T) {
	t.Parallel()
	y := newYard(t, "")
	y.die(0, 200, refused)
	r := quick(operate.Filter{Error: refused})
	r.Rate = 40
	id := y.confirm(y.rehearse(r)).ID
	_, err := y.Rehearse(t.Context(), "bob", job.Request{
		Kind: job.Discard, Queue: y.queue, All: true,
	}, nil)
	require.ErrorIs(t, err, job.ErrBusy, "one action at a time")
	y.await(id, "ten letters", func(a job.Action) bool { return a.Progress.Done >= 10 })

	began := time.Now()
	_, err = y.Stop("bob", id)
	require.NoError(t, err)
	a := y.ended(id)
	require.Less(t, a.Ended.Sub(began), 20*time.Second)
	require.Equal(t, job.StateStopped, a.State, a.Error)
	require.Equal(t, "bob", a.StoppedBy)
	moved := a.Progress.Done
	require.Less(t, moved, 10+2*40, "no more than two seconds at this rate")
	y.depth(y.queue, moved)
	y.depth(y.dead, 200-moved)

	h, err := y.Resume(t.Context(), "bob", id, nil)
	require.NoError(t, err)
	require.Equal(t, 200-moved, h.Count)
	require.Len(t, h.Request.Runs, 1)
}
