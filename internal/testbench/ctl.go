package testbench

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const ctlLimit = time.Minute

// Ctl runs rabbitmqctl against this node and returns what it printed, as in node.Ctl(t, "list_queues", "name", "messages").
// It fails the test if the command fails. Each call takes most of a second: it starts an Erlang of its own.
func (n *Node) Ctl(tb testing.TB, args ...string) string {
	tb.Helper()
	full := n.layout.in.command(append([]string{n.layout.in.ctl, "--quiet", "--node", n.layout.name}, args...)...)
	ctx, cancel := context.WithTimeout(tb.Context(), ctlLimit) // a frozen node never answers
	defer cancel()
	cmd := exec.CommandContext(ctx, full[0], full[1:]...)
	cmd.Env, cmd.Dir = n.layout.env(), "/"
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		tb.Fatalf("rabbitmqctl %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String()
}
