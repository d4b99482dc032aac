//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package auditlog

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// OpenOwn opens a file or a folder of this user, through no link. A file gets the rights 0600.
func OpenOwn(name string, flag int) (*os.File, error) {
	f, err := os.OpenFile(name, flag|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()):
		err = fmt.Errorf("%q belongs to another user: name a folder of your own", name)
	case info.Mode().IsRegular():
		err = f.Chmod(0o600)
	case !info.IsDir():
		err = fmt.Errorf("%q is neither a file nor a folder", name)
	case info.Mode()&0o002 != 0:
		err = fmt.Errorf("everybody may write to %q: take this right away", name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Lock locks a file until it is closed or the process ends. A file that another process has locked
// is an error.
func Lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// await locks a file as Lock does, when those that have locked it are done.
func await(f *os.File) error {
	for {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
