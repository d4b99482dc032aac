//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package auditlog

import (
	"fmt"
	"os"
)

// OpenOwn opens a file or a folder that is no link. These systems do not say whose it is.
func OpenOwn(name string, flag int) (*os.File, error) {
	if info, err := os.Lstat(name); err == nil && info.Mode()&os.ModeSymlink != 0 {
		return nil, fmt.Errorf("%q is a symbolic link", name)
	}
	return os.OpenFile(name, flag, 0o600)
}

// Lock does nothing: nothing on these systems unlocks a file after a kill.
func Lock(*os.File) error { return nil }

func await(*os.File) error { return nil }
