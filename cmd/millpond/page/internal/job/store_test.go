//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package job_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/page/internal/job"
	"github.com/millpond-go/millpond/internal/testing/rig"
)

func toTarget(file, target string) error { return os.Symlink(target, file) }
func forEverybody(file, _ string) error  { return os.Chmod(file, 0o777) }
func foreign(file, _ string) error       { return os.Chown(file, 1234, -1) }

// toFolder moves the folder away, if there is one.
func toFolder(file, target string) error {
	if err := os.Rename(file, file+".true"); err == nil {
		return os.Symlink(file+".true", file)
	}
	return os.Symlink(filepath.Dir(target), file)
}

// Given a link in place of a folder or a file of the state, or one that belongs to another user,
// then nothing behind it is written or believed. The files are for this user alone.
func TestTheFolderFollowsNoLink(t *testing.T) {
	t.Parallel()
	const entry, link, other = "actions/a1.json", "symbolic link", "another user"
	const running = `{"id": "a1", "who": "ada", "state": "running", "request": {"kind": "replay"}}`
	type planted struct {
		file  string // of the folder
		plant func(file, target string) error
		want  string // of the error
	}
	rig.Each(t, map[string]planted{
		"a new entry":            {entry + ".new", toTarget, ""},
		"the audit log":          {"audit.jsonl", toTarget, link},
		"the lock":               {"lock", toTarget, link},
		"another entry":          {"actions/b2.json", toTarget, link},
		"the letters":            {"discarded", toFolder, link},
		"the folder":             {"", toFolder, link},
		"a folder for everybody": {"", forEverybody, "everybody may write"},
		"a foreign folder":       {"", foreign, other},
		"a foreign entry":        {entry, foreign, other},
	}, func(t *testing.T, c planted) {
		folder := filepath.Join(t.TempDir(), "state")
		target := filepath.Join(t.TempDir(), "target")
		require.NoError(t, os.WriteFile(target, []byte("{}"), 0o600))
		require.NoError(t, os.MkdirAll(filepath.Join(folder, "actions"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(folder, entry), []byte(running), 0o644))
		err := c.plant(filepath.Join(folder, c.file), target)
		if errors.Is(err, os.ErrPermission) {
			t.Skip("only root gives a file away")
		}
		require.NoError(t, err)
		m, err := job.Open(job.Options{Folder: folder})
		if c.want == "" {
			require.NoError(t, err)
			require.NoError(t, m.Close())
			for _, file := range []string{"audit.jsonl", entry, "lock"} {
				info, err := os.Lstat(filepath.Join(folder, file))
				require.NoError(t, err)
				require.Equal(t, os.FileMode(0o600), info.Mode(), file)
			}
		} else {
			require.ErrorContains(t, err, c.want)
		}
		data, err := os.ReadFile(target)
		require.NoError(t, err)
		require.Equal(t, "{}", string(data))
	})
}
