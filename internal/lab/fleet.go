package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"
)

// fleet keeps instances running, each in its process. Like an orchestrator it starts another one
// in the place of one that has ended.
type fleet struct {
	out io.Writer
	log *eventLog

	wg      sync.WaitGroup
	mu      sync.Mutex
	places  []*place
	started int
	ended   int // by themselves
	closing bool
}

// place is where an instance runs.
type place struct {
	base     instance
	name     string      // of the instance that runs, or ran last
	process  *os.Process // nil between two
	signaled time.Time   // first, to end
}

// restartPause is between the end of an instance and the start of the next.
const restartPause = 400 * time.Millisecond

// startFleet starts an instance in each place.
func startFleet(places []instance, out io.Writer, log *eventLog) *fleet {
	f := &fleet{out: out, log: log}
	for _, base := range places {
		f.places = append(f.places, &place{base: base})
	}
	for _, p := range f.places {
		f.wg.Go(func() {
			for f.once(p) {
				time.Sleep(restartPause)
			}
		})
	}
	return f
}

// once runs an instance to its end, and reports whether another one must follow.
func (f *fleet) once(p *place) bool {
	cmd := exec.Command(os.Args[0])
	cmd.Stdout, cmd.Stderr = f.out, f.out
	// A signal to the terminal's process group reaches the lab alone, which ends the instances.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe() // its end tells the instance that this process has ended
	if err == nil {
		err = f.begin(p, cmd)
	}
	if err != nil {
		fmt.Fprintf(f.out, "start an instance: %v\n", err)
		return false
	}
	_ = cmd.Wait()
	now := time.Now()
	_ = stdin.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	p.process = nil
	e := event{Kind: gone, At: now, Who: p.name, Began: p.signaled}
	if p.signaled.IsZero() {
		e.Began = now
		f.ended++
	}
	if err := f.log.append(e); err != nil {
		fmt.Fprintf(f.out, "the end of instance %s: %v\n", p.name, err)
	}
	return !f.closing
}

func (f *fleet) begin(p *place, cmd *exec.Cmd) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closing {
		return os.ErrProcessDone
	}
	f.started++
	in := p.base
	in.Name = fmt.Sprint("i", f.started)
	config, err := json.Marshal(in)
	if err != nil {
		return err
	}
	cmd.Env = append(os.Environ(), instanceEnv+"="+string(config))
	if err := cmd.Start(); err != nil {
		return err
	}
	p.process, p.name, p.signaled = cmd.Process, in.Name, time.Time{}
	return nil
}

// running returns the names of the instances that run, by place; empty where none does.
func (f *fleet) running() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := make([]string, len(f.places))
	for i, p := range f.places {
		if p.process != nil {
			names[i] = p.name
		}
	}
	return names
}

// signal sends a signal to an instance that runs.
func (f *fleet) signal(name string, sig syscall.Signal) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.places, func(p *place) bool { return p.name == name })
	if i < 0 || f.places[i].process == nil {
		return fmt.Errorf("instance %s: %w", name, os.ErrProcessDone)
	}
	p := f.places[i]
	if (sig == syscall.SIGKILL || sig == syscall.SIGTERM) && p.signaled.IsZero() {
		p.signaled = time.Now()
	}
	return p.process.Signal(sig)
}

// all sends a signal to all instances.
func (f *fleet) all(sig syscall.Signal) {
	for _, name := range f.running() {
		_ = f.signal(name, sig) // between two there is none
	}
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

// endedByThemselves returns the number of instances that ended without a signal of the fleet.
func (f *fleet) endedByThemselves() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended
}
