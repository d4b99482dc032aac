package testbroker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// Managed starts a node like [Private], with RabbitMQ's management API, and returns the API's URL.
// rabbit has Erlang terms for the rabbit application. The node's home has no plugins, so the
// running node is told where the installation has them.
func Managed(tb testing.TB, rabbit string) (*Node, string) {
	tb.Helper()
	in := requireInstallation(tb)
	node, api, err := startManaged(tb.Context(), in, rabbit)
	must(tb, "start a node with the management API", err)
	endsWith(tb, "node", node.Close)
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
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return await(ctx, n.server, "the management API", func() error {
		resp, err := apiClient.Get(api + "/api/overview")
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

// Enable enables a plugin on a running node, in place of any other plugin.
func (n *Node) Enable(tb testing.TB, plugin string) {
	tb.Helper()
	must(tb, "enable plugin "+plugin, n.enable(tb.Context(), plugin))
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

// apiClient keeps no connection, so that a test finds no goroutine left.
var apiClient = &http.Client{
	Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second,
}

// SetPolicy sets a policy of a vhost by the management API, which costs far less than rabbitmqctl.
// kind is "policies" or "operator-policies". An unknown key or value fails the test, because the
// broker refuses it.
func SetPolicy(tb testing.TB, api, kind, vhost, name, pattern string, definition map[string]any) {
	tb.Helper()
	body, err := json.Marshal(map[string]any{"pattern": pattern, "definition": definition})
	must(tb, "encode a policy", err)
	address := api + "/api/" + kind + "/" + url.PathEscape(vhost) + "/" + url.PathEscape(name)
	req, err := http.NewRequestWithContext(
		tb.Context(), http.MethodPut, address, strings.NewReader(string(body)))
	must(tb, "set policy "+name, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := apiClient.Do(req)
	must(tb, "set policy "+name, err)
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 != 2 {
		reason, _ := io.ReadAll(resp.Body)
		tb.Fatalf("set policy %q of vhost %q to %s: %s: %s", name, vhost, body, resp.Status, reason)
	}
}
