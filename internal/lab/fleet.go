package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// fleet keeps instances running, each in its process. Like an orchestrator it starts another one
// in the place of one that has ended.
type fleet struct {
	*run
	wg      sync.WaitGroup
	mu      sync.Mutex
	places  []*place
	started int
	closing bool
}

// place is where an instance runs.
type place struct {
	instance             // that runs, or ran last
	process  *os.Process // nil between two
	signaled time.Time   // first, to end
}

// startFleet starts an instance in each place.
func (r *run) startFleet(places []instance) *fleet {
	f := &fleet{run: r}
	for _, in := range places {
		f.places = append(f.places, &place{instance: in})
	}
	for _, p := range f.places {
		f.wg.Go(func() {
			for f.once(p) {
				time.Sleep(400 * time.Millisecond)
			}
		})
	}
	return f
}

// once runs an instance to its end, and reports whether another one must follow.
func (f *fleet) once(p *place) bool {
	cmd := exec.Command(os.Args[0])
	cmd.Stdout, cmd.Stderr = f, f
	// A signal to the terminal's process group reaches the lab alone, which ends the instances.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe() // its end tells the instance that this process has ended
	if err == nil {
		err = f.begin(p, cmd)
	}
	if err != nil {
		f.say("start an instance: %v", err)
		return false
	}
	_ = cmd.Wait()
	now := time.Now()
	_ = stdin.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	p.process = nil
	f.note(event{
		Kind: gone, At: now, Who: p.Name, Began: p.signaled, Own: p.signaled.IsZero(),
	})
	return !f.closing
}

func (f *fleet) begin(p *place, cmd *exec.Cmd) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closing {
		return os.ErrProcessDone
	}
	f.started++
	p.Name, p.signaled = fmt.Sprint("i", f.started), time.Time{}
	config, err := json.Marshal(p.instance)
	if err != nil {
		return err
	}
	cmd.Env = append(os.Environ(), instanceEnv+"="+string(config))
	err = cmd.Start()
	p.process = cmd.Process
	return err
}

// running returns the names of the instances that run, by place; empty where none does.
func (f *fleet) running() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := make([]string, len(f.places))
	for i, p := range f.places {
		if p.process != nil {
			names[i] = p.Name
		}
	}
	return names
}

// signal sends a signal to the instance with a name, or to all if the name is empty.
func (f *fleet) signal(name string, sig syscall.Signal) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := fmt.Errorf("instance %q: %w", name, os.ErrProcessDone)
	for _, p := range f.places {
		if p.process == nil || name != "" && p.Name != name {
			continue
		}
		if (sig == syscall.SIGKILL || sig == syscall.SIGTERM) && p.signaled.IsZero() {
			p.signaled = time.Now()
		}
		err = p.process.Signal(sig)
	}
	return err
}

// close ends all instances, in good order for up to 20 seconds.
func (f *fleet) close() {
	f.mu.Lock()
	f.closing = true
	f.mu.Unlock()
	_ = f.signal("", syscall.SIGTERM) // between two there is none
	timer := time.AfterFunc(20*time.Second, func() { _ = f.signal("", syscall.SIGKILL) })
	defer timer.Stop()
	f.wg.Wait()
}
