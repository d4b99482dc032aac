package testbench

import (
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"
)

// Managed starts a node as [Private] does, with RabbitMQ's management API, and returns the API's URL. rabbit are Erlang terms
// for the rabbit application. The node's home has no plugins: the installation's are named to it while it runs.
func Managed(tb testing.TB, rabbit string) (*Node, string) {
	tb.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		tb.Fatal(err)
	}
	node := Private(tb, WithAdvancedConfig(fmt.Sprintf(
		`[{rabbit, [%s]}, {rabbitmq_management, [{tcp_config, [{port, %d}, {ip, "127.0.0.1"}]}]}].`, rabbit, port)))
	node.Ctl(tb, "eval", `
		{ok, Rabbit} = file:read_link(code:lib_dir(rabbit)),
		application:set_env(rabbit, plugins_dir, filename:dirname(Rabbit)),
		File = rabbit_plugins:enabled_plugins_file(),
		ok = file:delete(File),
		ok = file:write_file(File, "[rabbitmq_management].\n"),
		{ok, _, _} = rabbit_plugins:ensure(File).`)
	api := fmt.Sprintf("http://guest:guest@127.0.0.1:%d", port)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	WaitFor(tb, "the management API", time.Minute, func() bool {
		resp, err := client.Get(api + "/api/overview")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return node, api
}
