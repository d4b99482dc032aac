package chaos

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// fleet keeps consumers running: like an orchestrator it starts a consumer again that has ended.
type fleet struct {
	slots []*slot
	ended atomic.Int64 // by themselves
	wg    sync.WaitGroup
}

type slot struct {
	config consumer
	lines  lines
	out    io.Writer
	record func(Loss)

	mu       sync.Mutex
	process  *os.Process // nil between two
	caused   bool        // the fleet has signalled its end
	signaled time.Time   // first, to end; zero if it was not
	closing  bool
}

// restartPause is between the end of a consumer and the start of the next.
const restartPause = 500 * time.Millisecond

// newFleet starts size consumers. Each tries another node first. The end of every process goes to
// record.
func newFleet(
	base consumer, all lines, size int, dir string, out io.Writer, record func(Loss),
) *fleet {
	f := &fleet{}
	for i := range size {
		c := base
		c.Name = fmt.Sprint("c", i+1)
		c.Log = filepath.Join(dir, c.Name+".log")
		first := i % len(base.URLs)
		c.URLs = slices.Concat(base.URLs[first:], base.URLs[:first])
		s := &slot{config: c, lines: all, out: out, record: record}
		f.slots = append(f.slots, s)
		f.wg.Go(func() {
			for s.once() {
				if !s.take() {
					f.ended.Add(1)
				}
				time.Sleep(restartPause)
			}
		})
	}
	return f
}

// logs returns the files with the consumers' attempts.
func (f *fleet) logs() []*tail {
	var tails []*tail
	for _, s := range f.slots {
		of := func(n int) string { return identity(s.config.Name, s.lines.of(n).name) }
		tails = append(tails, &tail{consumer: of, name: s.config.Log})
	}
	return tails
}

// kill ends consumer i by SIGKILL.
func (f *fleet) kill(i int) error { return f.slots[i].signal(os.Kill) }

// stop ends consumer i in good order.
func (f *fleet) stop(i int) error { return f.slots[i].signal(syscall.SIGTERM) }

// close ends all consumers, in good order for up to 20 seconds.
func (f *fleet) close() {
	for _, s := range f.slots {
		s.mu.Lock()
		s.closing = true
		s.mu.Unlock()
		_ = s.signal(syscall.SIGTERM)
	}
	timer := time.AfterFunc(20*time.Second, func() {
		for _, s := range f.slots {
			_ = s.signal(os.Kill)
		}
	})
	defer timer.Stop()
	f.wg.Wait()
}

// once runs a consumer to its end, and reports whether another one must follow.
func (s *slot) once() bool {
	config, err := json.Marshal(s.config)
	if err != nil {
		panic(err) // strings and numbers only
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), consumerEnv+"="+string(config))
	cmd.Stdout, cmd.Stderr = s.out, s.out
	stdin, err := cmd.StdinPipe() // its end tells the consumer that this process has ended
	if err == nil {
		err = s.begin(cmd)
	}
	if err != nil {
		fmt.Fprintf(s.out, "start consumer %s: %v\n", s.config.Name, err)
		return false
	}
	_ = cmd.Wait()
	ended := time.Now()
	_ = stdin.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = nil
	began := s.signaled
	if began.IsZero() {
		began = ended
	}
	for _, l := range s.lines {
		s.record(Loss{
			Consumer: identity(s.config.Name, l.name), What: LostProcess, Began: began, At: ended,
		})
	}
	return !s.closing
}

func (s *slot) begin(cmd *exec.Cmd) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return os.ErrProcessDone
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.process, s.signaled = cmd.Process, time.Time{}
	return nil
}

func (s *slot) signal(sig os.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return os.ErrProcessDone
	}
	s.caused = true
	if s.signaled.IsZero() {
		s.signaled = time.Now()
	}
	return s.process.Signal(sig)
}

// take reports whether the fleet caused the last end.
func (s *slot) take() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	caused := s.caused
	s.caused = false
	return caused
}
