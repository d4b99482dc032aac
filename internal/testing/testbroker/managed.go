package testbroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"
)

// Managed starts a node as [Private] does, with RabbitMQ's management API, and returns the API's
// URL. rabbit are Erlang terms for the rabbit application. The node's home has no plugins: the
// installation's are named to it while it runs.
func Managed(tb testing.TB, rabbit string) (*Node, string) {
	tb.Helper()
	in := requireInstallation(tb)
	node, api, err := startManaged(tb.Context(), in, rabbit)
	if err != nil {
		tb.Fatalf("start a node with the management API: %v", err)
	}
	node.endsWith(tb)
	return node, api
}

func startManaged(ctx context.Context, in installation, rabbit string) (*Node, string, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return nil, "", err
	}
	node, err := startNode(ctx, in, []NodeOption{WithAdvancedConfig(fmt.Sprintf(
		`[{rabbit, [%s]}, {rabbitmq_management, [{tcp_config, [{port, %d}, {ip, "127.0.0.1"}]}]}].`,
		rabbit, port))})
	if err != nil {
		return nil, "", err
	}
	api := fmt.Sprintf("http://guest:guest@127.0.0.1:%d", port)
	if err := node.manage(ctx, api); err != nil {
		return nil, "", errors.Join(err, node.Close())
	}
	return node, api, nil
}

// manage enables the management plugin and returns once the API answers.
func (n *Node) manage(ctx context.Context, api string) error {
	if err := n.enable(ctx, "rabbitmq_management"); err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true},
		Timeout: 5 * time.Second}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return n.await(ctx, n.server, "the management API", func() error {
		resp, err := client.Get(api + "/api/overview")
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
}

// Enable enables a plugin on a running node, which had none before, in the place of any other.
func (n *Node) Enable(tb testing.TB, plugin string) {
	tb.Helper()
	if err := n.enable(tb.Context(), plugin); err != nil {
		tb.Fatalf("enable plugin %s: %v", plugin, err)
	}
}

func (n *Node) enable(ctx context.Context, plugin string) error {
	_, err := n.RunCtl(ctx, "eval", fmt.Sprintf(`
		{ok, Rabbit} = file:read_link(code:lib_dir(rabbit)),
		application:set_env(rabbit, plugins_dir, filename:dirname(Rabbit)),
		File = rabbit_plugins:enabled_plugins_file(),
		ok = file:delete(File),
		ok = file:write_file(File, "[%s].\n"),
		{ok, _, _} = rabbit_plugins:ensure(File).`, plugin))
	return err
}
