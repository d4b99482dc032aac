//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package job

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lockFile locks a file until it is closed or the process ends.
func lockFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrLocked, err), f.Close())
	}
	return f, nil
}
