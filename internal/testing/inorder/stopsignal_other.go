//go:build !unix

package main

import "syscall"

// No process can be halted here, and no broker can be started either.
const (
	stopSignal = syscall.SIGTERM
	goOnSignal = syscall.SIGTERM
)
