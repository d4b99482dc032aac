package topologytest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// trial is the run of one check. It keeps the result until the subtest of that name reports it, so
// that all checks wait at the same time, also with the flag -parallel 1.
type trial struct {
	name     string
	patience time.Duration

	mu              sync.Mutex
	failed, skipped bool
	lines           []string
	cleanups        []func() error
}

func newTrial(name string, patience time.Duration) *trial {
	return &trial{name: name, patience: patience}
}

// run calls f, which may end itself with fatalf or skipf.
func (tr *trial) run(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// report gives the result to a subtest.
func (tr *trial) report(t testing.TB) {
	t.Helper()
	for _, line := range tr.lines {
		t.Log(line)
	}
	switch {
	case tr.failed:
		t.FailNow()
	case tr.skipped:
		t.SkipNow()
	}
}

func (tr *trial) add(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.lines = append(tr.lines, fmt.Sprintf(format, args...))
}

func (tr *trial) logf(format string, args ...any) { tr.add(format, args...) }

func (tr *trial) errorf(format string, args ...any) {
	tr.add(format, args...)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.failed = true
}

func (tr *trial) fatalf(format string, args ...any) {
	tr.errorf(format, args...)
	runtime.Goexit()
}

func (tr *trial) skipf(format string, args ...any) {
	tr.add(format, args...)
	tr.mu.Lock()
	tr.skipped = true
	tr.mu.Unlock()
	runtime.Goexit()
}

// must ends the trial if there is an error.
func (tr *trial) must(err error, doing string, args ...any) {
	if err != nil {
		tr.fatalf("%s: %v", fmt.Sprintf(doing, args...), err)
	}
}

// cleanup adds a function that clean calls, the last one first.
func (tr *trial) cleanup(f func() error) { tr.cleanups = append(tr.cleanups, f) }

// inherit takes over the cleanups of another trial.
func (tr *trial) inherit(other *trial) {
	tr.cleanups, other.cleanups = append(tr.cleanups, other.cleanups...), nil
}

func (tr *trial) clean() {
	for _, f := range slices.Backward(tr.cleanups) {
		if err := f(); err != nil {
			tr.errorf("cannot clean up: %v", err)
		}
	}
	tr.cleanups = nil
}

// await waits until a condition holds, at most for the patience beyond due.
func (tr *trial) await(due time.Duration, cond func() bool) (ok bool) {
	for end := time.Now().Add(due + tr.patience); ; {
		if cond() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
}
