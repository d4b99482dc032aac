package job_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/lettertext"
	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/cmd/millpond/page/internal/job"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// theLetter returns the letter with an ID.
func (y *yard) theLetter(id string) operate.Letter {
	y.t.Helper()
	var found operate.Letter
	for l, err := range y.operator.Dead(y.t.Context(), y.plan, operate.Filter{IDs: []string{id}}, 1) {
		require.NoError(y.t, err)
		found = l
	}
	require.Equal(y.t, id, found.ID)
	return found
}

func TestEditShowsTheDifferenceAndKeepsTheOriginal(t *testing.T) {
	t.Parallel()
	y := newYard(t, "")
	y.die(0, 3, refused)
	change := &job.Change{
		Letter: lettertext.Identity(y.theLetter("order-1").Delivery),
		Text:   "tenant int64 7\npayload as text:\nrepaired\n",
	}
	r := job.Request{
		Kind: job.Edit, Filter: operate.Filter{IDs: []string{"order-1"}}, Change: change,
	}
	h := y.rehearse(r)
	require.Equal(t, 1, h.Count)
	require.Contains(t, h.Difference, lettertext.Span{Kind: "-", Text: "[-tenant int32 1-]"})
	require.Contains(t, h.Difference, lettertext.Span{Kind: "+", Text: "{+repaired+}"})
	change.Text = "payload as text:\nanother one, after the rehearsal\n"
	y.does(h, 1)
	edited := y.drain(y.queue, 1)[0]
	require.Equal(t, "repaired", string(edited.Body))
	require.Equal(t, int64(7), edited.Headers["tenant"])
	y.holds(y.dead+".originals", "body 1")

	r.Queue = y.queue
	_, err := y.Rehearse(t.Context(), "alice", r, nil)
	require.ErrorIs(t, err, job.ErrChanged)
	r.Filter.IDs = []string{"order-2"}
	change.Letter = lettertext.Identity(y.theLetter("order-2").Delivery)
	change.Text = "tenant int32 2"
	_, err = y.Rehearse(t.Context(), "alice", r, nil)
	require.ErrorIs(t, err, job.ErrRequest)
	require.ErrorContains(t, err, "is missing above the payload")
	require.NotContains(t, y.journal(), "repaired")
}

func TestDiscardedLettersAreInAFile(t *testing.T) {
	t.Parallel()
	y := newYard(t, topology.Classic)
	y.die(0, 4, refused)
	foreign := y.letter(9, refused)
	foreign.Headers[header.DeadQueue] = "another"
	y.publish(y.dead, foreign)
	y.die(4, 2, "no stock")
	a := y.does(y.rehearse(job.Request{
		Kind: job.Discard, Filter: operate.Filter{Error: refused},
	}), 4)
	y.holds(y.dead, "body 9", "body 4", "body 5")
	data, err := os.ReadFile(a.Export)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	require.Len(t, lines, 4)
	d, err := operate.Decode([]byte(lines[0]))
	require.NoError(t, err)
	require.Equal(t, "body 0", string(d.Body))
	info, err := os.Stat(a.Export)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	forgetful, err := job.Open(job.Options{Operator: y.connected, Plan: y.planOf})
	require.NoError(t, err)
	defer func() { require.NoError(t, forgetful.Close()) }()
	_, err = forgetful.Rehearse(t.Context(), "alice", job.Request{
		Kind: job.Discard, Queue: y.queue, All: true,
	}, nil)
	require.ErrorIs(t, err, job.ErrNoFolder)
}

// waits publishes messages that wait an hour.
func (y *yard) waits(n int) {
	y.t.Helper()
	for i := range n {
		m := y.letter(i, "")
		m.Headers = nil
		y.publish(y.queue+".wait.1h", shop.Waiting(y.queue, header.RetryState{
			Failures: 2, Error: refused, Class: header.ClassRetryable, Delay: time.Hour,
			FirstSeen: time.Now(), OriginRoutingKey: y.queue,
		}, m))
	}
}

func TestReleaseAndCancel(t *testing.T) {
	t.Parallel()
	y := newYard(t, "")
	y.waits(5)
	h := y.rehearse(job.Request{Kind: job.Release, Filter: operate.Filter{IDs: []string{"order-1"}}})
	require.Equal(t, 1, h.Count)
	require.Equal(t, 5, h.Found.Total)
	y.does(h, 1)
	y.holds(y.queue, "body 1")
	h = y.rehearse(job.Request{Kind: job.Cancel, Filter: operate.Filter{Delay: time.Hour}})
	require.Equal(t, 4, h.Count)
	y.waits(1) // after the rehearsal
	y.does(h, 4)
	y.holds(y.dead, "body 0", "body 2", "body 3", "body 4")
	h = y.rehearse(job.Request{Kind: job.Release, All: true})
	require.Equal(t, 1, h.Count)
	_, err := y.Rehearse(t.Context(), "alice", job.Request{
		Kind: job.Release, Queue: y.queue, Filter: operate.Filter{Reason: "exhausted"},
	}, nil)
	require.ErrorIs(t, err, job.ErrRequest, "a filter is never passed over")
}

func TestReturnOfStrandedMessages(t *testing.T) {
	t.Parallel()
	y := newYard(t, "")
	stranded := y.queue + ".stranded"
	rig.DeclareQueue(t, y.url, stranded, amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30),
	})
	for i, queue := range []string{y.queue, y.queue, y.queue + ".gone", y.queue} {
		m := y.letter(i, "")
		m.Headers = amqp.Table{header.Queue: queue}
		y.publish(stranded, m)
	}
	h := y.rehearse(job.Request{Kind: job.Return, Queue: stranded, All: true})
	require.Equal(t, 3, h.Count)
	require.Equal(t, []string{`1 stay, because their queue "` + y.queue + `.gone" does not exist`},
		h.Notes)
	y.does(h, 3)
	y.holds(y.queue, "body 0", "body 1", "body 3")
	y.depth(stranded, 1)
}

// The journal belongs to one process. An entry that cannot be read is named, and one that a kill
// has cut off is passed over.
func TestTheJournal(t *testing.T) {
	t.Parallel()
	y := newYard(t, topology.Classic)
	y.die(0, 1, refused)
	id := y.does(y.rehearse(quick(operate.Filter{})), 1).ID
	again := func() error {
		m, err := job.Open(job.Options{Operator: y.connected, Plan: y.planOf, Folder: y.folder})
		if err == nil {
			require.Equal(t, id, m.Actions()[0].ID)
			require.NoError(t, m.Close())
		}
		return err
	}
	require.ErrorIs(t, again(), job.ErrLocked)
	require.NoError(t, y.Close())
	note := filepath.Join(y.folder, "actions", id+".json")
	require.NoError(t, os.WriteFile(note+".new", []byte(`{"id":"cut o`), 0o600))
	require.NoError(t, again())
	require.NoError(t, os.WriteFile(note, []byte("garbage\n{}\n"), 0o600))
	err := again()
	require.ErrorContains(t, err, "is no action: move the file away")
	var none *json.SyntaxError
	require.ErrorAs(t, err, &none)
}
