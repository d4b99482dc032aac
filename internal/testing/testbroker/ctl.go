package testbroker

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const ctlLimit = time.Minute

// Ctl runs rabbitmqctl against this node and returns its output, as in node.Ctl(t, "list_queues",
// "name", "messages"). It fails the test if the command fails. Each call takes half a second of
// processor time, because it starts an Erlang. Only two commands take none: see [Node.RunCtl].
func (n *Node) Ctl(tb testing.TB, args ...string) string {
	tb.Helper()
	out, err := n.RunCtl(tb.Context(), args...)
	must(tb, "run rabbitmqctl", err)
	return out
}

// RunCtl runs rabbitmqctl for a program. It takes a minute at most. An eval, and the watermark that
// raises a memory alarm, ask the node itself, without rabbitmqctl.
func (n *Node) RunCtl(ctx context.Context, args ...string) (string, error) {
	if len(args) == 0 || !vhostsAndUsers.MatchString(args[0]) {
		n.changed.Store(true)
	}
	if len(args) == 2 {
		switch args[0] {
		case "eval":
			return n.eval(ctx, args[1])
		case "set_vm_memory_high_watermark":
			return n.eval(ctx, "vm_memory_monitor:"+args[0]+"("+args[1]+").")
		}
	}
	return n.runTool(ctx, "rabbitmqctl", args...)
}

// vhostsAndUsers matches commands that change at most vhosts and users, see [pool].
var vhostsAndUsers = regexp.MustCompile(
	`^(list_\w+|add_user|add_vhost|(set|clear)_(operator_)?policy|set_permissions|set_user_tags|` +
		`close_all_connections)$`)

// RunTool runs another tool of RabbitMQ, rabbitmq-queues for example.
func (n *Node) RunTool(ctx context.Context, tool string, args ...string) (string, error) {
	n.changed.Store(true)
	return n.runTool(ctx, tool, args...)
}

func (n *Node) runTool(ctx context.Context, tool string, args ...string) (string, error) {
	path := filepath.Join(filepath.Dir(n.layout.in.ctl), tool)
	out, err := n.ask(ctx, append([]string{path, "--quiet", "--node", n.layout.name}, args...)...)
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", tool, strings.Join(args, " "), err)
	}
	return out, nil
}

// ask runs a command beside the node, with its environment, and returns its output.
func (n *Node) ask(ctx context.Context, args ...string) (string, error) {
	full := n.layout.in.command(args...)
	ctx, cancel := context.WithTimeout(ctx, ctlLimit) // a frozen node never answers
	defer cancel()
	cmd := exec.CommandContext(ctx, full[0], full[1:]...)
	cmd.Env, cmd.Dir = n.layout.env(), "/"
	cmd.Stdin = strings.NewReader("a password for add_user, which asks for one\n")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w\n%s%s", err, out.String(), errs.String())
	}
	return out.String(), nil
}

// Name returns the Erlang name of the node, as rabbitmqctl prints it.
func (n *Node) Name() string { return n.layout.name }

// Import hands definitions to the node, one at a time: of two at once it may leave one out. The
// import of rabbitmqctl took more than a minute on a busy machine.
func (n *Node) Import(tb testing.TB, definitions []byte) {
	tb.Helper()
	_, err := n.eval(tb.Context(), fmt.Sprintf(
		`ok = rabbit_definitions:import_raw(base64:decode("%s")).`,
		base64.StdEncoding.EncodeToString(definitions)))
	must(tb, "import definitions", err)
}

// Grant is a user's permissions in a vhost. An empty one matches nothing.
type Grant struct{ VHost, User, Configure, Write, Read string }

// Everything grants a user all permissions in a vhost.
func Everything(vhost, user string) Grant { return Grant{vhost, user, ".*", ".*", ".*"} }

// Grant makes the vhosts and the users with their permissions, in one call. A user's password
// is the name.
func (n *Node) Grant(tb testing.TB, grants ...Grant) {
	tb.Helper()
	var b strings.Builder
	for _, g := range grants {
		fmt.Fprintf(&b, "{%s, %s, %s, %s, %s},", term(g.VHost), term(g.User), term(g.Configure),
			term(g.Write), term(g.Read))
	}
	_, err := n.eval(tb.Context(), fmt.Sprintf(`[begin
		rabbit_vhost:exists(V) orelse (ok = rabbit_vhost:add(V, <<"bench">>)),
		rabbit_auth_backend_internal:exists(U) orelse
			(ok = rabbit_auth_backend_internal:add_user(U, U, <<"bench">>)),
		ok = rabbit_auth_backend_internal:set_permissions(U, V, C, W, R, <<"bench">>)
	end || {V, U, C, W, R} <- [%s]].`, strings.TrimSuffix(b.String(), ",")))
	must(tb, "grant permissions", err)
}

// term writes a text as an Erlang binary.
func term(text string) string { return fmt.Sprintf("<<%q/utf8>>", text) }

// Managed starts a node like [Private], with RabbitMQ's management API, and returns the API's URL.
// rabbit has Erlang terms for the rabbit application. The node's home has no plugins, so the
// running node is told where the installation has them.
func Managed(tb testing.TB, rabbit string) (*Node, string) {
	tb.Helper()
	in := requireInstallation(tb)
	start := func() (*Node, error) {
		return onFreePorts(tb.Context(), 2*startLimit, func(ctx context.Context) (*Node, error) {
			return startManaged(ctx, in, rabbit)
		})
	}
	var node *Node
	if rabbit == "" {
		node = managed.lend(tb, start)
	} else {
		var err error
		node, err = start()
		must(tb, "start a node with the management API", err)
		endsWith(tb, "node", node.Close)
	}
	return node, node.api
}

func startManaged(ctx context.Context, in installation, rabbit string) (*Node, error) {
	port, err := freePort(nil)
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(
		`[{rabbit, [%s]}, {rabbitmq_management, [{tcp_config, [{port, %d}, {ip, "127.0.0.1"}]}]}].`,
		rabbit, port)
	node, err := startNode(ctx, in, []NodeOption{WithAdvancedConfig(config)})
	if err != nil {
		return nil, err
	}
	node.api = fmt.Sprintf("http://guest:guest@127.0.0.1:%d", port)
	if err := node.launched(node.manage(ctx)); err != nil {
		return nil, errors.Join(err, node.Close())
	}
	return node, nil
}

// manage enables the management plugin and returns once the API answers.
func (n *Node) manage(ctx context.Context) error {
	if err := n.enable(ctx, "rabbitmq_management"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return await(ctx, n.server, "the management API", func() error {
		resp, err := apiClient.Get(n.api + "/api/overview")
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
	n.changed.Store(true)
	must(tb, "enable plugin "+plugin, n.enable(tb.Context(), plugin))
}

func (n *Node) enable(ctx context.Context, plugin string) error {
	_, err := n.eval(ctx, fmt.Sprintf(`
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

// PolicyKeys returns the keys that the broker knows, by the kinds of SetPolicy.
func (n *Node) PolicyKeys(tb testing.TB) map[string][]string {
	tb.Helper()
	keys := map[string][]string{}
	for kind, registered := range map[string]string{
		"policies": "policy_validator", "operator-policies": "operator_policy_validator",
	} {
		keys[kind] = strings.Fields(n.Ctl(tb, "eval", fmt.Sprintf(
			`[io:format("~s ", [K]) || {K, _} <- lists:usort(rabbit_registry:lookup_all(%s))].`,
			registered)))
		keys[kind] = slices.DeleteFunc(keys[kind], func(word string) bool { // what eval returns
			return strings.Contains(word, "ok")
		})
	}
	return keys
}

// SetPolicy sets a policy of a vhost by the management API, which costs far less than rabbitmqctl.
// kind is "policies" or "operator-policies". An unknown key or value fails the test, because the
// broker refuses it.
func SetPolicy(tb testing.TB, api, kind, vhost, name, pattern string, definition map[string]any) {
	tb.Helper()
	Put(tb, api, map[string]any{"pattern": pattern, "definition": definition}, kind, vhost, name)
}

// Put creates or replaces an object of the management API. An object that the API refuses fails
// the test.
func Put(tb testing.TB, api string, object any, path ...string) {
	tb.Helper()
	body, err := json.Marshal(object)
	must(tb, "encode an object", err)
	callAPI(tb, http.MethodPut, api, body, path)
}

// Remove deletes an object of the management API, which must exist.
func Remove(tb testing.TB, api string, path ...string) {
	tb.Helper()
	callAPI(tb, http.MethodDelete, api, nil, path)
}

func callAPI(tb testing.TB, method, api string, body []byte, path []string) {
	tb.Helper()
	address := api + "/api"
	for _, part := range path {
		address += "/" + url.PathEscape(part)
	}
	// A cleanup calls it when the context of the test is done already.
	req, err := http.NewRequestWithContext(
		context.WithoutCancel(tb.Context()), method, address, bytes.NewReader(body))
	must(tb, "make a request", err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := apiClient.Do(req)
	must(tb, method+" "+strings.Join(path, "/"), err)
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 != 2 {
		reason, _ := io.ReadAll(resp.Body)
		tb.Fatalf("%s %q with %s: %s: %s", method, path, body, resp.Status, reason)
	}
}
