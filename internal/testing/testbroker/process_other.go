//go:build !unix

package testbroker

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// Process groups and signals need Unix. Other systems use AMQP_URL.
var errUnix = errors.New("nodes can be started on Unix only")

const freeze, thaw = syscall.Signal(0), syscall.Signal(0)

type group struct{ watchdog, leader *process }

type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func startGroup(string, []string, *os.File, ...string) (*group, error) { return nil, errUnix }

func (g *group) add([]string, *os.File, ...string) (*process, error) { return nil, errUnix }

func (g *group) end(...*process) error { return nil }

func (p *process) ended() bool { return true }

func (p *process) halted() bool { return true }

func (p *process) signal(syscall.Signal) error { return errUnix }

func memory() string { return "" }
