//go:build unix

package main

import "syscall"

// stopSignal halts a process, and goOnSignal lets it go on.
const (
	stopSignal = syscall.SIGSTOP
	goOnSignal = syscall.SIGCONT
)
