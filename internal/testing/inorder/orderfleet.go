package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// fleet keeps instances running, each in its process. Like an orchestrator it starts another one
// when one has ended.
type fleet struct {
	program string // of the instances; usually this program
	base    service
	urls    []string // one for each place of the fleet
	out     io.Writer
	// told is called with the name of an instance that has ended.
	told func(name string)

	wg      sync.WaitGroup
	mu      sync.Mutex
	places  []*os.Process // nil between two
	names   []string      // of the instances that run, or ran last
	caused  []bool        // a signal of the fleet ended it
	started int
	ended   int // by themselves
	closing bool
}

// restartPause is between the end of an instance and the start of the next.
const restartPause = 300 * time.Millisecond

func startFleet(
	program string, base service, urls []string, out io.Writer, told func(string),
) *fleet {
	f := &fleet{
		program: program, base: base, urls: urls, out: out, told: told,
		places: make([]*os.Process, len(urls)),
		names:  make([]string, len(urls)), caused: make([]bool, len(urls)),
	}
	for i := range urls {
		f.wg.Go(func() {
			for f.once(i) {
				time.Sleep(restartPause)
			}
		})
	}
	return f
}

// once runs an instance to its end, and reports whether another one must follow.
func (f *fleet) once(i int) bool {
	cmd := exec.Command(f.program)
	cmd.Stdout, cmd.Stderr = f.out, f.out
	stdin, err := cmd.StdinPipe() // its end tells the instance that this process has ended
	if err == nil {
		err = f.begin(i, cmd)
	}
	if err != nil {
		fmt.Fprintf(f.out, "start instance %d: %v\n", i, err)
		return false
	}
	_ = cmd.Wait()
	_ = stdin.Close()
	f.told(f.name(i))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.places[i] = nil
	if !f.caused[i] {
		f.ended++
	}
	return !f.closing
}

func (f *fleet) begin(i int, cmd *exec.Cmd) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closing {
		return os.ErrProcessDone
	}
	f.started++
	s := f.base
	s.URL, s.Name = f.urls[i], fmt.Sprint("i", f.started)
	config, err := json.Marshal(s)
	if err != nil {
		return err
	}
	cmd.Env = append(os.Environ(), instanceEnv+"="+string(config))
	if err := cmd.Start(); err != nil {
		return err
	}
	f.places[i], f.names[i], f.caused[i] = cmd.Process, s.Name, false
	return nil
}

// place returns where an instance runs, or ran last; ok is false for an earlier one.
func (f *fleet) place(name string) (i int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, n := range f.names {
		if n == name {
			return i, f.places[i] != nil
		}
	}
	return 0, false
}

// name returns the instance at place i.
func (f *fleet) name(i int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.names[i]
}

// signal sends a signal to the instance at place i, if it is still the named one.
func (f *fleet) signal(i int, name string, sig syscall.Signal) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.places[i] == nil || f.names[i] != name {
		return fmt.Errorf("instance %s: %w", name, os.ErrProcessDone)
	}
	if sig == syscall.SIGKILL || sig == syscall.SIGTERM {
		f.caused[i] = true
	}
	return f.places[i].Signal(sig)
}

// close ends all instances, in good order for up to 20 seconds.
func (f *fleet) close() {
	f.mu.Lock()
	f.closing = true
	f.mu.Unlock()
	f.all(syscall.SIGTERM)
	timer := time.AfterFunc(20*time.Second, func() { f.all(syscall.SIGKILL) })
	defer timer.Stop()
	f.wg.Wait()
}

func (f *fleet) all(sig syscall.Signal) {
	for i := range f.urls {
		_ = f.signal(i, f.name(i), sig) // between two there is none
	}
}

// endedByThemselves returns the number of instances that ended without a signal of the fleet.
func (f *fleet) endedByThemselves() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended
}
