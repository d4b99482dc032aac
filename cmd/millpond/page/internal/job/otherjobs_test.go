package job_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/page/internal/job"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

func TestDiscardedLettersAreInAFile(t *testing.T) {
	t.Parallel()
	y := newYard(t, topology.Classic)
	y.die(0, 4, refused)
	foreign := y.letter(9, refused)
	foreign.Headers[header.DeadQueue] = "another"
	rig.Post(t, y.url, y.dead, foreign)
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
		rig.Post(t, y.url, stranded, m)
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
