package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"
)

// outageFleet are the services of one contender, each in a process.
type outageFleet struct {
	processes []*outageProcess

	mu    sync.Mutex
	notes []note
}

type outageProcess struct {
	cmd   *exec.Cmd
	stdin io.Closer  // its end tells the service that the bench has ended
	ended chan error // how the process has ended
}

// startFleet starts a number of services, and returns when all consume.
func startFleet(ctx context.Context, base outageService, size int) (f *outageFleet, err error) {
	f = &outageFleet{}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.stop())
		}
	}()
	for i := range size {
		s := base
		s.Name = fmt.Sprintf("%s-%d", base.Contender, i+1)
		p, err := f.start(s)
		if err != nil {
			return f, err
		}
		f.processes = append(f.processes, p)
		if i == 0 || i == size-1 { // the first declares the queues
			if err := f.await(ctx, i+1); err != nil {
				return f, err
			}
		}
	}
	return f, nil
}

// await returns when a number of services consume.
func (f *outageFleet) await(ctx context.Context, n int) error {
	limit := time.After(time.Minute)
	for f.count(noteReady) < n {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return fmt.Errorf("%d of %d services consume after a minute", f.count(noteReady), n)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

func (f *outageFleet) start(s outageService) (*outageProcess, error) {
	config, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), outageEnv+"="+string(config)), os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	// A signal to the terminal's process group reaches the bench alone, which ends the services.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &outageProcess{cmd, stdin, make(chan error, 1)}
	go func() {
		err := f.read(stdout)
		p.ended <- errors.Join(err, cmd.Wait())
	}()
	return p, nil
}

// read collects the notes of a service until it ends.
func (f *outageFleet) read(out io.Reader) error {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var n note
		if err := json.Unmarshal(lines.Bytes(), &n); err != nil {
			return fmt.Errorf("a service wrote %q: %w", lines.Text(), err)
		}
		f.mu.Lock()
		f.notes = append(f.notes, n)
		f.mu.Unlock()
	}
	return lines.Err()
}

// count returns how many notes of a kind the services have written.
func (f *outageFleet) count(kind string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for i := range f.notes {
		if string(f.notes[i].Kind) == kind {
			n++
		}
	}
	return n
}

// told returns all notes in the order of time.
func (f *outageFleet) told() []note {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.SortedStableFunc(slices.Values(f.notes),
		func(a, b note) int { return a.At.Compare(b.At) })
}

// stop ends the services in good order, for up to 30 seconds.
func (f *outageFleet) stop() (err error) {
	for _, p := range f.processes {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	timer := time.AfterFunc(30*time.Second, func() {
		for _, p := range f.processes {
			_ = p.cmd.Process.Kill()
		}
	})
	defer timer.Stop()
	for _, p := range f.processes {
		err = errors.Join(err, <-p.ended)
		_ = p.stdin.Close()
	}
	f.processes = nil
	return err
}
