//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package job

import (
	"fmt"
	"os"
)

// openOwn opens a file or a folder that is no link. These systems do not say whose it is.
func openOwn(name string, flag int) (*os.File, error) {
	if info, err := os.Lstat(name); err == nil && info.Mode()&os.ModeSymlink != 0 {
		return nil, fmt.Errorf("%q is a symbolic link", name)
	}
	return os.OpenFile(name, flag, 0o600)
}

// lockFile opens a file. Nothing on these systems unlocks it after a kill, so it is not locked.
func lockFile(name string) (*os.File, error) { return openOwn(name, os.O_CREATE|os.O_RDWR) }
