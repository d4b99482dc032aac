//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package job

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// openOwn opens a file or a folder of this user, through no link. A file gets the rights 0600.
func openOwn(name string, flag int) (*os.File, error) {
	f, err := os.OpenFile(name, flag|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()):
		err = fmt.Errorf("%q belongs to another user: name a folder of your own", name)
	case !info.IsDir():
		err = f.Chmod(0o600)
	case info.Mode()&0o002 != 0:
		err = fmt.Errorf("everybody may write to %q: take this right away", name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lockFile locks a file until it is closed or the process ends.
func lockFile(name string) (*os.File, error) {
	f, err := openOwn(name, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrLocked, err), f.Close())
	}
	return f, nil
}
