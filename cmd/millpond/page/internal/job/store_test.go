//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package job_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/page/internal/job"
)

// Given a link in place of a folder or a file of the state, or one that belongs to another user,
// then nothing behind it is written or believed. The files are for this user alone.
func TestTheFolderFollowsNoLink(t *testing.T) {
	t.Parallel()
	const entry, link, other = "actions/a1.json", "symbolic link", "another user"
	const running = `{"id": "a1", "who": "ada", "state": "running", "request": {"kind": "replay"}}`
	to := func(file string) func(folder, target string) error {
		return func(folder, target string) error {
			return os.Symlink(target, filepath.Join(folder, file))
		}
	}
	for name, c := range map[string]struct {
		plant func(folder, target string) error
		want  string // of the error
	}{
		"an entry that a kill cut off": {to(entry + ".new"), ""},
		"the audit log":                {to("audit.jsonl"), link},
		"the lock":                     {to("lock"), link},
		"another entry":                {to("actions/b2.json"), link},
		"the letters": {func(folder, target string) error {
			return os.Symlink(filepath.Dir(target), filepath.Join(folder, "discarded"))
		}, link},
		"the folder": {func(folder, _ string) error {
			return errors.Join(os.Rename(folder, folder+".true"), os.Symlink(folder+".true", folder))
		}, link},
		"a folder for everybody": {func(folder, _ string) error {
			return os.Chmod(folder, 0o777)
		}, "everybody may write"},
		"a foreign folder": {func(folder, _ string) error { return os.Chown(folder, 1234, -1) }, other},
		"a foreign entry": {func(folder, _ string) error {
			return os.Chown(filepath.Join(folder, entry), 1234, -1)
		}, other},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := filepath.Join(t.TempDir(), "state")
			target := filepath.Join(t.TempDir(), "target")
			require.NoError(t, os.WriteFile(target, []byte("{}"), 0o600))
			require.NoError(t, os.MkdirAll(filepath.Join(folder, "actions"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(folder, entry), []byte(running), 0o644))
			err := c.plant(folder, target)
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
}
