//go:build unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

const (
	patience    = 10 * time.Second // between a signal that is passed on and SIGKILL
	parentCheck = 500 * time.Millisecond
)

// execute runs the command in its own process group and returns its exit code. It passes signals on
// to the whole group, because `go test` does not pass a SIGTERM to its test binaries.
func execute(args []string, parent int, env []string) (int, error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdout, os.Stderr, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()

	group, started := -cmd.Process.Pid, os.Getppid()
	signalled := false
	tell := func(s syscall.Signal) {
		signalled = true
		_ = syscall.Kill(group, s)
	}
	var kill <-chan time.Time
	orphaned := time.NewTicker(parentCheck)
	defer orphaned.Stop()
	for {
		select {
		case err := <-done:
			if signalled {
				tell(syscall.SIGKILL) // the rest of the group
			}
			return exitCode(cmd, err)
		case s := <-signals:
			tell(s.(syscall.Signal))
			kill = time.After(patience)
		case <-orphaned.C:
			if !signalled && (os.Getppid() != started || !alive(parent)) {
				tell(syscall.SIGTERM)
				kill = time.After(patience)
			}
		case <-kill:
			tell(syscall.SIGKILL)
		}
	}
}

// alive reports whether a process exists, also as a zombie or under another user.
func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func exitCode(cmd *exec.Cmd, err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case !errors.As(err, &exit):
		return 1, err
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}
