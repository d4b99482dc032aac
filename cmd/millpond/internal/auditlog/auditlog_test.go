package auditlog_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
)

// Given processes that append to one file, and a line that a kill has cut off, then each entry is a
// line of its own.
func TestProcessesShareALog(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "state", "audit.jsonl")
	const processes, each = 8, 25
	var all sync.WaitGroup
	for p := range processes {
		log, err := auditlog.Open(name) // each has a lock of its own
		require.NoError(t, err)
		all.Go(func() {
			for range each {
				e := auditlog.Entry{Who: "p" + strconv.Itoa(p), What: strings.Repeat("x", 10_000)}
				require.NoError(t, log.Append(e))
			}
			require.NoError(t, log.Close())
		})
	}
	all.Wait()
	entries, err := auditlog.Read(name)
	require.NoError(t, err)
	counts := map[string]int{}
	for i, e := range entries {
		counts[e.Who]++
		require.False(t, i > 0 && e.At.Before(entries[i-1].At), "the newest last")
	}
	require.Len(t, counts, processes)
	require.Len(t, entries, processes*each)

	require.NoError(t, os.WriteFile(name, []byte(`{"who":"a"}`+"\n"+`{"who":"b`), 0o600))
	log, err := auditlog.Open(name)
	require.NoError(t, err)
	require.NoError(t, log.Append(auditlog.Entry{Who: "c"}))
	require.NoError(t, log.Close())
	entries, err = auditlog.Read(name)
	require.ErrorContains(t, err, "line 2 is no entry")
	require.Equal(t, []string{"a", "c"}, []string{entries[0].Who, entries[1].Who})

	_, err = auditlog.Open(os.DevNull) // which would get the rights 0600
	require.Error(t, err)
}

// Given a process that keeps the file locked, then an entry is refused within seconds, and the next
// one is taken when the file is free.
func TestALockedLogRefuses(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "audit.jsonl")
	log, err := auditlog.Open(name)
	require.NoError(t, err)
	other, err := auditlog.OpenOwn(name, os.O_RDWR)
	require.NoError(t, err)
	require.NoError(t, auditlog.Lock(other))
	require.ErrorContains(t, log.Append(auditlog.Entry{Who: "a"}), "has locked")
	require.NoError(t, other.Close())
	require.NoError(t, log.Append(auditlog.Entry{Who: "b"}))
	require.NoError(t, log.Append(auditlog.Entry{Who: "c"}), "the late turn has given the lock back")
	entries, err := auditlog.Read(name)
	require.NoError(t, err)
	require.Len(t, entries, 2)
}
