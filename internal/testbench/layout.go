package testbench

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// layout is where a node keeps its files, and the environment that makes it stay there.
type layout struct {
	in      installation
	folder  string // on this machine
	inside  string // the same as the node sees it
	name    string // of the Erlang node: mp-…@localhost
	ports   ports
	scripts string // see slim
}

func newLayout(in installation, s settings) (layout, error) {
	picked, err := s.pick()
	if err != nil {
		return layout{}, err
	}
	parent := ""
	if in.root != "" {
		parent = filepath.Join(in.root, "tmp")
	}
	folder, err := os.MkdirTemp(parent, "millpond-node-")
	if err != nil {
		return layout{}, err
	}
	l := layout{in: in, folder: folder, inside: folder[len(in.root):], name: "mp-" + randomHex(4) + "@localhost", ports: picked}
	if err := l.write(s); err != nil {
		_ = os.RemoveAll(folder)
		return layout{}, err
	}
	l.scripts = l.slim()
	return l, nil
}

func (l layout) write(s settings) error {
	conf := append([]string{
		fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d", l.ports.amqp),
		// A small disk must not raise the alarm that stops all publishing.
		"disk_free_limit.absolute = 10MB",
	}, append(l.in.config(), s.lines...)...)
	files := map[string]string{
		"rabbitmq.conf":   strings.Join(conf, "\n") + "\n",
		"enabled_plugins": "[].\n",
		".erlang.cookie":  randomHex(16),
	}
	if s.advanced != "" {
		files["advanced.config"] = s.advanced + "\n"
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(l.folder, name), []byte(content), 0o400); err != nil {
			return err
		}
	}
	return nil
}

// env is the whole environment of the node, its epmd and its rabbitmqctl: nothing of the caller's RABBITMQ_ or ERL_
// variables gets through.
func (l layout) env() []string {
	in := func(name string) string { return filepath.Join(l.inside, name) }
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:" + os.Getenv("PATH"),
		"LANG=C.UTF-8",
		"HOME=" + l.inside,
		// Every Erlang that is started from here listens on loopback only, also the short-lived ones; epmd is ours.
		"ERL_AFLAGS=-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false +S 2:2",
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
}

// An Erlang crash report is long, and its reason stands at its beginning.
const tailLines = 60

// tail returns the end of what the node wrote to its log and its output.
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
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
