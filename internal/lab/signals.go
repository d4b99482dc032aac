package main

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// stopSignal halts a process, goOnSignal lets it go on, and dumpSignal asks for its goroutines.
const (
	stopSignal = syscall.SIGSTOP
	goOnSignal = syscall.SIGCONT
	dumpSignal = syscall.SIGUSR1
)

// lockShared takes a shared lock on a file. The system releases it, too, when the process dies.
func lockShared(name string) (release func(), err error) { return lock(name, syscall.LOCK_SH) }

// lockAlone takes the lock for the caller alone. It gives up when ctx is done.
func lockAlone(ctx context.Context, name string) (release func(), err error) {
	for {
		release, err = lock(name, syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return release, err
		}
		if !rest(ctx, 20*time.Millisecond) {
			return nil, errors.Join(err, ctx.Err())
		}
	}
}

func lock(name string, how int) (release func(), err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
		err = syscall.Flock(int(f.Fd()), how)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}
