package testbroker

import (
	crand "crypto/rand"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// layout is the place of a node's files, and the environment that keeps them there.
type layout struct {
	in      installation
	folder  string // on this machine
	inside  string // the same as the node sees it
	name    string // of the Erlang node: mp-…@localhost
	ports   ports
	tls     bool // there is a TLS listener
	cookie  string
	seeds   []string // the cluster's nodes that started before this one
	scripts string   // of the installation, see slim
	plugins bool     // there is a plugin beside the installation's

	schedulers int // threads that run Erlang code
}

func newLayout(in installation, s settings) (layout, error) {
	picked, err := s.pick()
	if err != nil {
		return layout{}, err
	}
	parent, schedulers := "", 2
	test := s.memory || testing.Testing()
	if test {
		// Two schedulers wake each other for each message. With one of them a connection takes a third
		// less processor time, a message a quarter.
		schedulers = 1
	}
	switch {
	case in.root != "":
		parent = filepath.Join(in.root, "tmp")
	case test:
		parent = memory()
	}
	folder, err := os.MkdirTemp(parent, "millpond-node-")
	if err != nil {
		return layout{}, err
	}
	l := layout{
		in: in, folder: folder, inside: folder[len(in.root):], name: nodeName(), ports: picked,
		tls: s.tls != nil, cookie: randomHex(16), plugins: s.plugins != "",
		schedulers: schedulers,
	}
	if err := l.write(s); err != nil {
		_ = os.RemoveAll(folder)
		return layout{}, err
	}
	l.scripts = in.slim()
	return l, nil
}

func nodeName() string { return "mp-" + randomHex(4) + "@localhost" }

// another returns the layout of a further node of l's cluster. It has a folder in l's, and l's
// epmd.
func (l layout) another(s settings, seeds []string) (layout, error) {
	picked, err := s.pick()
	if err != nil {
		return layout{}, err
	}
	picked.epmd = l.ports.epmd
	next := l
	next.name, next.ports, next.seeds = nodeName(), picked, seeds
	sub := "member-" + fmt.Sprint(len(seeds)+1)
	next.folder, next.inside = filepath.Join(l.folder, sub), filepath.Join(l.inside, sub)
	if err := os.Mkdir(next.folder, 0o700); err != nil {
		return layout{}, err
	}
	if err := next.write(s); err != nil {
		return layout{}, err
	}
	return next, nil
}

// clustering joins the node to the first of its cluster when it starts for the first time.
func (l layout) clustering() []string {
	if len(l.seeds) == 0 {
		return nil
	}
	lines := []string{"cluster_formation.peer_discovery_backend = classic_config"}
	for i, name := range append([]string{l.seeds[0]}, l.name) {
		lines = append(lines, fmt.Sprintf("cluster_formation.classic_config.nodes.%d = %s", i+1, name))
	}
	return lines
}

func (l layout) write(s settings) error {
	conf := append([]string{
		fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d", l.ports.amqp),
		// A small disk must not raise the alarm that stops all publishing.
		"disk_free_limit.absolute = 10MB",
	}, slices.Concat(l.in.config(), l.clustering(), s.lines)...)
	files := map[string]string{
		"rabbitmq.conf":   strings.Join(conf, "\n") + "\n",
		"enabled_plugins": "[].\n",
		".erlang.cookie":  l.cookie,
		"evaluator.erl":   l.evaluator(),
	}
	if s.plugins != "" {
		files["enabled_plugins"] = "[" + delayedPlugin + "].\n"
		err := os.CopyFS(filepath.Join(l.folder, "plugins"), os.DirFS(s.plugins))
		if err != nil {
			return err
		}
	}
	if s.advanced != "" {
		files["advanced.config"] = s.advanced + "\n"
	}
	if s.tls != nil {
		files["ca.pem"], files["key.pem"] = string(s.tls.ca), string(s.tls.key)
		files["certificate.pem"] = string(s.tls.certificate)
		files["rabbitmq.conf"] += fmt.Sprintf(tlsConfig, l.ports.tls, l.inside, l.inside, l.inside)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(l.folder, name), []byte(content), 0o400); err != nil {
			return err
		}
	}
	return nil
}

const tlsConfig = `listeners.ssl.1 = 127.0.0.1:%d
ssl_options.cacertfile = %s/ca.pem
ssl_options.certfile = %s/certificate.pem
ssl_options.keyfile = %s/key.pem
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
`

// everyErlang returns the flags of each Erlang beside a node, also of a short-lived one. It listens
// on loopback only, and starts no epmd.
func (l layout) everyErlang() string {
	const flags = "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false +S %[1]d:%[1]d"
	return fmt.Sprintf(flags, l.schedulers)
}

// forTests is the environment of a node for tests, beside other nodes on few processors.
var forTests = []string{
	// RabbitMQ's own table of Erlang processes is eight times as large, and Erlang writes all of it at
	// the start.
	"RABBITMQ_MAX_NUMBER_OF_PROCESSES=131072",
	// RabbitMQ binds its schedulers to processors. The only scheduler of every node was bound to the
	// same one, and the others had nothing to do.
	"RABBITMQ_SCHEDULER_BIND_TYPE=u",
}

// serverEnv returns the environment of the node's server.
func (l layout) serverEnv() []string {
	if l.schedulers == 1 {
		return append(l.env(), forTests...)
	}
	return l.env()
}

// env returns the whole environment of the node's epmd and its rabbitmqctl, without the RABBITMQ_
// and ERL_ variables of the caller.
func (l layout) env() []string {
	in := func(name string) string { return filepath.Join(l.inside, name) }
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:" + os.Getenv("PATH"),
		"LANG=C.UTF-8",
		"HOME=" + l.inside,
		"ERL_AFLAGS=" + l.everyErlang(),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		fmt.Sprintf("ERL_EPMD_PORT=%d", l.ports.epmd),
		"ERL_CRASH_DUMP_SECONDS=0",
		"RABBITMQ_NODENAME=" + l.name,
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		fmt.Sprintf("RABBITMQ_NODE_PORT=%d", l.ports.amqp),
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", l.ports.dist),
		"RABBITMQ_CTL_DIST_PORT_MIN=0",
		"RABBITMQ_CTL_DIST_PORT_MAX=0",
		"RABBITMQ_CONF_ENV_FILE=" + in("no-rabbitmq-env.conf"),
		"RABBITMQ_CONFIG_FILE=" + in("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + in("advanced.config"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + in("enabled_plugins"),
		"RABBITMQ_MNESIA_BASE=" + in("data"),
		"RABBITMQ_LOG_BASE=" + in("log"),
		"RABBITMQ_LOGS=" + in("log/node.log"),
		"RABBITMQ_GENERATED_CONFIG_DIR=" + in("generated"),
		"RABBITMQ_SCHEMA_DIR=" + in("schema"),
		"RABBITMQ_PID_FILE=" + in("node.pid"),
		// The script then becomes the Erlang process instead of waiting for it.
		"RABBITMQ_ALLOW_INPUT=true",
	}
	if l.plugins {
		env = append(env, "RABBITMQ_PLUGINS_DIR="+l.in.pluginsDir(l.scripts)+":"+in("plugins"))
	}
	return env
}

// An Erlang crash report is long, and its reason stands at its beginning.
const tailLines = 60

// tail returns the end of the node's log and of its output.
func (l layout) tail() string {
	var b strings.Builder
	for _, name := range []string{"output", "log/node.log"} {
		content, err := os.ReadFile(filepath.Join(l.folder, name))
		if err != nil || len(content) == 0 {
			continue
		}
		lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
		lines = lines[max(0, len(lines)-tailLines):]
		fmt.Fprintf(&b, "\n--- end of the node's %s:\n%s", name, strings.Join(lines, "\n"))
	}
	return b.String()
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = crand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// Ports are picked below the local ports of outgoing connections on Linux (32768 and up), so that a
// port stays free while its node is stopped.
const (
	firstPort = 18000
	lastPort  = 32000
)

type ports struct{ amqp, dist, epmd, tls int }

func pickPorts() (ports, error) {
	var picked [4]int
	for i := range picked {
		port, err := freePort(picked[:i])
		if err != nil {
			return ports{}, err
		}
		picked[i] = port
	}
	return ports{amqp: picked[0], dist: picked[1], epmd: picked[2], tls: picked[3]}, nil
}

func freePort(taken []int) (int, error) {
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if slices.Contains(taken, port) {
			continue
		}
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return 0, err
		}
		return port, nil
	}
	return 0, fmt.Errorf("no free port between %d and %d on 127.0.0.1", firstPort, lastPort)
}
