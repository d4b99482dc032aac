package testbroker

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const ctlLimit = time.Minute

// Ctl runs rabbitmqctl against this node and returns its output, as in node.Ctl(t, "list_queues",
// "name", "messages"). It fails the test if the command fails. Each call takes most of a second,
// because it starts an Erlang.
func (n *Node) Ctl(tb testing.TB, args ...string) string {
	tb.Helper()
	out, err := n.RunCtl(tb.Context(), args...)
	must(tb, "run rabbitmqctl", err)
	return out
}

// RunCtl runs rabbitmqctl for a program. It takes a minute at most.
func (n *Node) RunCtl(ctx context.Context, args ...string) (string, error) {
	return n.RunTool(ctx, "rabbitmqctl", args...)
}

// RunTool runs another tool of RabbitMQ, rabbitmq-queues for example.
func (n *Node) RunTool(ctx context.Context, tool string, args ...string) (string, error) {
	path := filepath.Join(filepath.Dir(n.layout.in.ctl), tool)
	full := n.layout.in.command(append([]string{path, "--quiet", "--node", n.layout.name}, args...)...)
	ctx, cancel := context.WithTimeout(ctx, ctlLimit) // a frozen node never answers
	defer cancel()
	cmd := exec.CommandContext(ctx, full[0], full[1:]...)
	cmd.Env, cmd.Dir = n.layout.env(), "/"
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", tool, strings.Join(args, " "), err, out.String(),
			errs.String())
	}
	return out.String(), nil
}

// File writes a file for the node and its rabbitmqctl, also in a chroot, and returns its path
// there. It is removed with the node's folder.
func (n *Node) File(tb testing.TB, name string, data []byte) string {
	tb.Helper()
	must(tb, "write a file for the node",
		os.WriteFile(filepath.Join(n.layout.folder, name), data, 0o644))
	return filepath.Join(n.layout.inside, name)
}

// Name returns the Erlang name of the node, as rabbitmqctl prints it.
func (n *Node) Name() string { return n.layout.name }

// Import hands a definitions file to the node, one at a time: of two at once it may leave one out.
func (n *Node) Import(tb testing.TB, definitions []byte) {
	tb.Helper()
	n.Ctl(tb, "import_definitions", n.File(tb, "definitions.json", definitions))
}

// Grant is a user's permissions in a vhost. An empty one matches nothing.
type Grant struct{ VHost, User, Configure, Write, Read string }

// Everything grants a user all permissions in a vhost.
func Everything(vhost, user string) Grant { return Grant{vhost, user, ".*", ".*", ".*"} }

// Grant makes the vhosts and the users with their permissions, in one rabbitmqctl. A user's
// password is the name.
func (n *Node) Grant(tb testing.TB, grants ...Grant) {
	tb.Helper()
	var b strings.Builder
	for _, g := range grants {
		fmt.Fprintf(&b, "{%s, %s, %s, %s, %s},", term(g.VHost), term(g.User), term(g.Configure),
			term(g.Write), term(g.Read))
	}
	n.Ctl(tb, "eval", fmt.Sprintf(`[begin
		rabbit_vhost:exists(V) orelse (ok = rabbit_vhost:add(V, <<"bench">>)),
		rabbit_auth_backend_internal:exists(U) orelse
			(ok = rabbit_auth_backend_internal:add_user(U, U, <<"bench">>)),
		ok = rabbit_auth_backend_internal:set_permissions(U, V, C, W, R, <<"bench">>)
	end || {V, U, C, W, R} <- [%s]].`, strings.TrimSuffix(b.String(), ",")))
}

// term writes a text as an Erlang binary.
func term(text string) string { return fmt.Sprintf("<<%q/utf8>>", text) }
