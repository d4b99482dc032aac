//go:build unix

package chaos

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// lockShared takes a shared lock on a file. The system releases it, too, when the process dies.
func lockShared(name string) (release func(), err error) {
	return lock(name, syscall.LOCK_SH)
}

// lockAlone takes the lock for the caller alone. It gives up when ctx is done.
func lockAlone(ctx context.Context, name string) (release func(), err error) {
	for {
		release, err = lock(name, syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return release, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		}
	}
}

func lock(name string, how int) (release func(), err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for err = syscall.EINTR; err == syscall.EINTR; {
		err = syscall.Flock(int(f.Fd()), how)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}
