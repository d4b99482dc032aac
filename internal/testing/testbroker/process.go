package testbroker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

const (
	freeze = syscall.SIGSTOP
	thaw   = syscall.SIGCONT
)

// watch kills the last named process group and removes the folder, when its standard input ends. An
// empty line disarms it. It tries again, because a dying process may still create files.
const watch = `
trap '' HUP INT TERM
group=
while read -r line; do group=$line; done
[ -z "$group" ] || kill -s KILL -- "-$group" 2>/dev/null
tries=0
while ! rm -rf -- "$1" 2>/dev/null && [ "$tries" -lt 50 ]; do tries=$((tries + 1)); sleep 0.1; done`

// gate holds the first member of a group back until the watchdog knows its group.
const gate = `read -r go && exec "$@"`

// group is the process group of one node, with its watchdog.
type group struct {
	watchdog *process
	armed    *os.File // the watchdog's standard input
	leader   *process
}

type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and is reaped
}

// startGroup starts a watchdog over folder and the group's first process.
func startGroup(folder string, env []string, output *os.File, args ...string) (*group, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	dog := exec.Command("sh", "-c", watch, "sh", folder)
	dog.Stdin = r
	dog.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // out of reach of the terminal's ^C
	watchdog, err := start(dog)
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	g := &group{watchdog: watchdog, armed: w}

	fail := func(err error) (*group, error) { return nil, errors.Join(err, g.end()) }
	held, open, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	defer held.Close()
	defer open.Close()
	first := exec.Command("sh", append([]string{"-c", gate, "sh"}, args...)...)
	first.Stdin, first.Stdout, first.Stderr, first.Env = held, output, output, env
	first.Dir = "/"
	first.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if g.leader, err = start(first); err != nil {
		return fail(err)
	}
	if _, err := fmt.Fprintln(w, g.leader.pid()); err != nil {
		return fail(err)
	}
	if _, err := io.WriteString(open, "go\n"); err != nil {
		return fail(err)
	}
	return g, nil
}

// add starts another process in the group.
func (g *group) add(env []string, output *os.File, args ...string) (*process, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = output, output, env
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: g.leader.pid()}
	return start(cmd)
}

// end kills the group and waits until procs, the watchdog and the folder are gone.
func (g *group) end(procs ...*process) error {
	var err error
	if g.leader != nil {
		// Once all have ended, another group may have the number.
		if g.alive(procs) {
			err = syscall.Kill(-g.leader.pid(), syscall.SIGKILL)
		}
		<-g.leader.done
	}
	for _, p := range procs {
		if p != nil {
			<-p.done
		}
	}
	// For the same reason the watchdog is disarmed: it only removes the folder.
	_, writeErr := io.WriteString(g.armed, "\n")
	err = errors.Join(err, writeErr, g.armed.Close())
	<-g.watchdog.done
	return err
}

func (g *group) alive(procs []*process) bool {
	return slices.ContainsFunc(append(procs, g.leader), func(p *process) bool {
		return p != nil && !p.ended()
	})
}

func start(cmd *exec.Cmd) (*process, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // the state is in cmd.ProcessState
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) signal(s syscall.Signal) error {
	if p.ended() {
		return os.ErrProcessDone
	}
	return p.cmd.Process.Signal(s)
}

// halted reports whether all threads are stopped. Without /proc it returns true.
func (p *process) halted() bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.pid()))
	if err != nil {
		return true
	}
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		// The state follows the name, which is in parentheses and may contain parentheses.
		if end := bytes.LastIndexByte(stat, ')'); end < 0 || !bytes.HasPrefix(stat[end:], []byte(") T")) {
			return false
		}
	}
	return true
}

// inMemory is a folder whose files are in memory, on Linux.
const inMemory = "/dev/shm"

// memory returns the parent of node folders in memory, or "" for the usual one: if TMPDIR is set,
// or with less than 2 GiB free. A process that is killed loses no file there, as on a disk. Only a
// crash of the machine would, which no test makes.
func memory() string {
	var s syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(inMemory, &s) != nil ||
		float64(s.Bavail)*float64(s.Bsize) < 2<<30 {
		return ""
	}
	return inMemory
}
