package testbroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	startLimit    = 90 * time.Second
	stopLimit     = 60 * time.Second
	startAttempts = 5
	pollEvery     = 20 * time.Millisecond
)

// Node is a RabbitMQ node on this machine, reachable from it only. The methods that stop, start or
// freeze it are for one goroutine at a time.
type Node struct {
	layout  layout
	group   *group
	output  *os.File
	server  *process
	version string
	api     string      // of the management plugin, of a node of [Managed]
	changed atomic.Bool // in more than its vhosts and users
	cluster *Cluster    // nil for a node alone
	close   sync.Once
	closed  error
}

// Private returns a node for this test alone, which may stop, freeze and kill it. The test is
// skipped when no broker is installed. AMQP_URL is not enough: it may name a broker that others
// use. A node without options may have served another test, see [pool].
func Private(tb testing.TB, opts ...NodeOption) *Node {
	tb.Helper()
	in := requireInstallation(tb)
	start := func() (*Node, error) { return startNode(tb.Context(), in, opts) }
	if len(opts) == 0 {
		return private.lend(tb, start)
	}
	n, err := start()
	must(tb, "start a node", err)
	endsWith(tb, "node", n.Close)
	return n
}

// endsWith calls end at the end of the test.
func endsWith(tb testing.TB, what string, end func() error) {
	tb.Cleanup(func() {
		if err := end(); err != nil {
			tb.Errorf("end the %s: %v", what, err)
		}
	})
}

// must fails the test on an error.
func must(tb testing.TB, done string, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("%s: %v", done, err)
	}
}

// Start starts a node for a program. The context bounds the start, which takes at most 90 seconds.
// The node lives until Close, or until the program ends.
func Start(ctx context.Context, opts ...NodeOption) (*Node, error) {
	in, err := findInstallation(os.Getenv("MILLPOND_BROKER"))
	if err != nil {
		return nil, err
	}
	return startNode(ctx, in, opts)
}

func startNode(ctx context.Context, in installation, opts []NodeOption) (*Node, error) {
	s := settings{pick: pickPorts}
	for _, opt := range opts {
		opt(&s)
	}
	return onFreePorts(ctx, startLimit, func(ctx context.Context) (*Node, error) {
		return launch(ctx, in, s)
	})
}

// errPort means that another process has one of the ports.
var errPort = errors.New("a port is in use")

// onFreePorts calls launch, and again where another process was faster to take a port.
func onFreePorts[T any](
	ctx context.Context, limit time.Duration, launch func(context.Context) (T, error),
) (launched T, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var errs []error
	for range startAttempts {
		if launched, err = launch(ctx); err == nil {
			return launched, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil || !errors.Is(err, errPort) {
			break
		}
	}
	return launched, errors.Join(errs...)
}

func launch(ctx context.Context, in installation, s settings) (*Node, error) {
	l, err := newLayout(in, s)
	if err != nil {
		return nil, err
	}
	n, err := newNode(l)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(l.folder))
	}
	epmd := in.command(in.epmd, "-address", "127.0.0.1", "-port", fmt.Sprint(l.ports.epmd))
	n.group, err = startGroup(l.folder, l.env(), n.output, epmd...)
	if err != nil {
		return nil, errors.Join(err, n.output.Close(), os.RemoveAll(l.folder))
	}
	if err := n.launched(n.run(ctx)); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func newNode(l layout) (*Node, error) {
	output, err := os.Create(filepath.Join(l.folder, "output"))
	return &Node{layout: l, output: output}, err
}

// launched explains the error of a first run by the node's output. A plugin's listener that found
// its port taken says so in the error alone.
func (n *Node) launched(err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%w%s", err, n.layout.tail())
	if said := err.Error(); strings.Contains(said, "eaddrinuse") ||
		strings.Contains(said, "in use by another") {
		return fmt.Errorf("%w: %w", errPort, err)
	}
	return err
}

// run starts the server beside its epmd and returns once it speaks AMQP.
func (n *Node) run(ctx context.Context) error {
	epmd := func() error {
		conn, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", n.layout.ports.epmd))
		if err != nil {
			return err
		}
		return conn.Close()
	}
	if err := await(ctx, n.group.leader, "epmd", epmd); err != nil {
		return n.orEpmd(err)
	}
	script, env := n.layout.in.server, n.layout.serverEnv()
	if slim := n.layout.scripts; slim != "" {
		script, env = filepath.Join(slim, "rabbitmq-server"), append(env, "RABBITMQ_SCRIPTS_DIR="+slim)
	}
	env = append(env, "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+n.layout.evaluating())
	if err := os.Remove(n.layout.evaluatorPort()); err != nil && !os.IsNotExist(err) {
		return err
	}
	server, err := n.group.add(env, n.output, n.layout.in.command(script, "-noinput")...)
	if err != nil {
		if errors.Is(err, syscall.EPERM) { // epmd has ended, and its process group with it
			select {
			case <-n.group.leader.done:
			case <-ctx.Done():
			}
		}
		return n.orEpmd(fmt.Errorf("start rabbitmq-server: %w", err))
	}
	n.server = server
	if err := n.orEpmd(await(ctx, server, "rabbitmq-server", n.greet)); err != nil {
		return err
	}
	// A node greets before it runs, for seconds on a busy machine, and rabbitmqctl fails until then.
	_, err = n.eval(ctx, "ok.")
	return err
}

// orEpmd explains err, even nil, by the end of epmd, which ends at once when another process has
// its port. Then the process group is gone, too, or another epmd has answered.
func (n *Node) orEpmd(err error) error {
	if n.group.leader.ended() {
		return errors.Join(fmt.Errorf("%w: epmd has ended", errPort), err)
	}
	return err
}

// await polls until ready returns nil.
func await(ctx context.Context, p *process, what string, ready func() error) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended while starting (%s)", what, p.cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %w", what, ctx.Err(), err)
		case <-ticker.C:
		}
	}
}

// greet opens an AMQP connection and checks that this node answers on the port.
func (n *Node) greet() error {
	port, err := net.Dial("tcp4", n.address())
	if err != nil {
		return err
	}
	if err := port.Close(); err != nil {
		return err
	}
	conn, err := amqp.DialConfig(n.URL(), amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)})
	if err != nil {
		return err
	}
	defer conn.Close()
	cluster, _ := conn.Properties["cluster_name"].(string)
	if !n.knows(cluster) {
		return fmt.Errorf("port %d belongs to another node, %q", n.layout.ports.amqp, cluster)
	}
	n.version, _ = conn.Properties["version"].(string)
	if !n.layout.tls {
		return nil
	}
	secure, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", n.layout.ports.tls))
	if err != nil {
		return err
	}
	return secure.Close()
}

// knows reports whether the node's cluster has that name: RabbitMQ names it after one of its nodes.
func (n *Node) knows(cluster string) bool {
	for _, name := range append([]string{n.layout.name}, n.layout.seeds...) {
		own, _, _ := strings.Cut(name, "@")
		if strings.HasPrefix(cluster, own+"@") {
			return true
		}
	}
	return false
}

// URL returns amqp://guest:guest@127.0.0.1:<port>/. It stays the same while the node lives.
func (n *Node) URL() string { return n.URLOf("guest") }

// URLOf returns the URL for a user of [Node.Grant].
func (n *Node) URLOf(user string) string {
	return fmt.Sprintf("amqp://%s:%s@%s/", user, user, n.address())
}

// TLSURL returns the address of the TLS listener of [WithTLS], by the name localhost.
func (n *Node) TLSURL() string {
	return fmt.Sprintf("amqps://guest:guest@localhost:%d/", n.layout.ports.tls)
}

func (n *Node) address() string { return fmt.Sprintf("127.0.0.1:%d", n.layout.ports.amqp) }

// Pid returns the process of the server, which is Erlang's own.
func (n *Node) Pid() int { return n.server.cmd.Process.Pid }

// Folder returns the folder of all that the node has written, which Close removes.
func (n *Node) Folder() string { return n.layout.folder }

// Version returns RabbitMQ's version as the node reports it to a client.
func (n *Node) Version() string { return n.version }

// Stop ends the server as an operator does, by SIGTERM, and returns when it is gone. Its data
// stays.
func (n *Node) Stop(tb testing.TB) {
	tb.Helper()
	must(tb, "stop the node", n.stop())
}

func (n *Node) stop() error {
	n.changed.Store(true)
	if err := n.server.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-n.server.done:
		return nil
	case <-time.After(stopLimit):
		return fmt.Errorf("it has not stopped in %s%s", stopLimit, n.layout.tail())
	}
}

// Start starts a stopped or killed server again, on the same port and with the same data, and
// returns when it can be used.
func (n *Node) Start(tb testing.TB) {
	tb.Helper()
	must(tb, "start the node again", n.start(tb.Context()))
}

func (n *Node) start(ctx context.Context) error {
	if !n.server.ended() {
		return errors.New("it runs")
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := n.run(ctx); err != nil {
		return fmt.Errorf("%w%s", err, n.layout.tail())
	}
	return nil
}

// Kill ends the server by SIGKILL, like a crash, and returns when it is gone. RabbitMQ 3.10 may
// forget a queue that was declared milliseconds before (seen: one kill in thirty).
func (n *Node) Kill(tb testing.TB) {
	tb.Helper()
	must(tb, "kill the node", n.kill())
}

func (n *Node) kill() error {
	n.changed.Store(true)
	if err := n.server.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-n.server.done
	return nil
}

// Freeze halts the server: its connections stay open and no byte moves. Close ends a frozen node,
// too.
func (n *Node) Freeze(tb testing.TB) {
	tb.Helper()
	must(tb, "freeze the node", n.freeze())
}

// freeze returns when no thread of the server runs. The signal alone is not enough: of 300
// publishes right after it, 4 were still confirmed by a node that was to be frozen.
func (n *Node) freeze() error {
	n.changed.Store(true)
	if err := n.server.signal(freeze); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	return await(ctx, n.server, "the frozen server", func() error {
		if !n.server.halted() {
			return errors.New("a thread runs")
		}
		return nil
	})
}

// Thaw lets a frozen server go on.
func (n *Node) Thaw(tb testing.TB) {
	tb.Helper()
	must(tb, "thaw the node", n.server.signal(thaw))
}

// Close kills the server and its epmd and removes their files. Further calls do nothing and return
// the same error. A member of a cluster ends the whole cluster.
func (n *Node) Close() error {
	if n.cluster != nil {
		return n.cluster.Close()
	}
	n.close.Do(func() {
		n.closed = errors.Join(n.group.end(n.server), n.output.Close())
	})
	return n.closed
}

// NodeOption changes how a node is configured.
type NodeOption func(*settings)

type settings struct {
	lines    []string
	advanced string
	tls      *tlsFiles
	memory   bool
	plugins  string // a folder with a plugin beside the installation's, or ""
	pick     func() (ports, error)
}

// WithConfig appends lines to the node's rabbitmq.conf. Without it the node has RabbitMQ's defaults
// and listens on loopback only.
func WithConfig(lines ...string) NodeOption {
	return func(s *settings) { s.lines = append(s.lines, lines...) }
}

// WithAdvancedConfig gives the node an advanced.config: one Erlang term, ending in a dot, as in
// `[{rabbit, [{channel_tick_interval, 1000}]}].` Without it there is none.
func WithAdvancedConfig(term string) NodeOption {
	return func(s *settings) { s.advanced = term }
}

// InMemory is for the broker of tests: its data is in memory if there is enough on this machine,
// see [memory], and one thread runs its Erlang code. Nodes that tests start are always so. Default:
// on the disk, and two threads.
func InMemory() NodeOption { return func(s *settings) { s.memory = true } }

type tlsFiles struct{ ca, certificate, key []byte }

// WithTLS gives the node a TLS listener on loopback beside the plain one, see [Node.TLSURL]. The
// files are PEM. The listener admits only clients with a certificate that ca has signed. Default:
// no TLS listener.
func WithTLS(ca, certificate, key []byte) NodeOption {
	return func(s *settings) { s.tls = &tlsFiles{ca, certificate, key} }
}

// WithConsumerTimeout makes the node take back the messages that a consumer has not acked within
// timeout. The node checks once within every; RabbitMQ 4.3 does not wait for the check. Both are
// whole milliseconds, above 0. It replaces an advanced.config. Default: 30 minutes, checked once a
// minute.
func WithConsumerTimeout(timeout, every time.Duration) NodeOption {
	return WithAdvancedConfig(fmt.Sprintf(
		"[{rabbit, [{consumer_timeout, %d}, {channel_tick_interval, %d}]}].",
		timeout.Milliseconds(), every.Milliseconds()))
}
