// Withbroker runs a command with a RabbitMQ beside it:
//
//	go run ./internal/tools/withbroker -- go run ./examples/webhooks
//
// It starts a broker, sets AMQP_URL for the command, waits for it, ends the broker and exits with
// the command's code. The broker is the installed rabbitmq-server or the version that
// MILLPOND_BROKER names. If AMQP_URL is set it starts nothing.
//
// SIGINT and SIGTERM go on to the command and every process that it has started. So does the end
// of the parent process, because a signal to `make` or `go run` does not come this far. -parent
// names another process than the parent. With -memory the broker's data is in memory, for tests.
// With -delayed it has the delayed-message plugin of the folder MILLPOND_DELAYED_PLUGIN.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func main() {
	parent := flag.Int("parent", os.Getppid(), "process to end with")
	memory := flag.Bool("memory", false, "keep the broker's data in memory, if there is enough")
	delayed := flag.Bool("delayed", false,
		"load the delayed-message plugin from the folder that MILLPOND_DELAYED_PLUGIN names")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr,
			"usage: withbroker [-parent pid] [-memory] [-delayed] -- command [argument …]")
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	var options []testbroker.NodeOption
	if *memory {
		options = append(options, testbroker.InMemory())
	}
	if *delayed {
		plugin, err := testbroker.WithDelayedPlugin()
		if err != nil {
			say("%v", err)
			os.Exit(1)
		}
		options = append(options, plugin)
	}
	code, err := run(flag.Args(), *parent, options)
	if err != nil {
		say("%v", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// broker is the broker of the command.
type broker struct {
	url  string
	env  []string // more for the command's environment
	stop func() error
}

func run(
	args []string, parent int, options []testbroker.NodeOption,
) (code int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	b, err := start(ctx, options)
	interrupted := ctx.Err() != nil
	stop()
	if err != nil {
		return 1, err
	}
	defer func() {
		err = errors.Join(err, b.stop())
	}()
	if interrupted {
		return 130, nil
	}
	return execute(args, parent, append(append(os.Environ(), "AMQP_URL="+b.url), b.env...))
}

func start(ctx context.Context, options []testbroker.NodeOption) (broker, error) {
	if given := os.Getenv("AMQP_URL"); given != "" {
		b := broker{url: given, stop: func() error { return nil }}
		say("AMQP_URL is set: using %s, starting nothing", redacted(given))
		if err := testbroker.Installed(); err != nil {
			say("tests that start their own broker will be skipped: %v", err)
			b.env = []string{"MILLPOND_REQUIRE_BROKER=url"}
		}
		return b, nil
	}
	say("starting RabbitMQ …")
	began := time.Now()
	node, err := testbroker.Start(ctx, options...)
	if errors.Is(err, testbroker.ErrNoBroker) {
		err = fmt.Errorf("%w; or set AMQP_URL", err)
	}
	if err != nil {
		return broker{}, err
	}
	say("RabbitMQ %s answers on %s after %.1f s", node.Version(), redacted(node.URL()),
		time.Since(began).Seconds())
	return broker{url: node.URL(), stop: node.Close}, nil
}

func redacted(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "an address that cannot be parsed" // and might contain a password
	}
	return u.Redacted()
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "withbroker: "+format+"\n", args...) }

const (
	patience    = 10 * time.Second // between a signal that is passed on and SIGKILL
	parentCheck = 500 * time.Millisecond
)

// execute runs the command in its own process group and returns its exit code. It passes signals on
// to the whole group, because `go test` does not pass a SIGTERM to its test binaries.
func execute(args []string, parent int, env []string) (int, error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdout, os.Stderr, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()

	group, started := -cmd.Process.Pid, os.Getppid()
	signalled := false
	tell := func(s syscall.Signal) {
		signalled = true
		_ = syscall.Kill(group, s)
	}
	var kill <-chan time.Time
	orphaned := time.NewTicker(parentCheck)
	defer orphaned.Stop()
	for {
		select {
		case err := <-done:
			if signalled {
				tell(syscall.SIGKILL) // the rest of the group
			}
			return exitCode(cmd, err)
		case s := <-signals:
			tell(s.(syscall.Signal))
			kill = time.After(patience)
		case <-orphaned.C:
			if !signalled && (os.Getppid() != started || !alive(parent)) {
				tell(syscall.SIGTERM)
				kill = time.After(patience)
			}
		case <-kill:
			tell(syscall.SIGKILL)
		}
	}
}

// alive reports whether a process exists, also as a zombie or under another user.
func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func exitCode(cmd *exec.Cmd, err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case !errors.As(err, &exit):
		return 1, err
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}
