package topology_test

import (
	"fmt"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testbench"
)

// managed starts a node of the test's own with RabbitMQ's management API, and
// returns the API's URL. The node's home has no plugins: the installation's are
// named to it while it runs. rabbit are Erlang terms for the rabbit application.
func managed(t testing.TB, rabbit string) (*testbench.Node, string) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	node := testbench.Private(t, testbench.WithAdvancedConfig(fmt.Sprintf(
		`[{rabbit, [%s]}, {rabbitmq_management, [{tcp_config, [{port, %d}, {ip, "127.0.0.1"}]}]}].`, rabbit, port)))
	node.Ctl(t, "eval", `
		{ok, Rabbit} = file:read_link(code:lib_dir(rabbit)),
		application:set_env(rabbit, plugins_dir, filename:dirname(Rabbit)),
		File = rabbit_plugins:enabled_plugins_file(),
		ok = file:delete(File),
		ok = file:write_file(File, "[rabbitmq_management].\n"),
		{ok, _, _} = rabbit_plugins:ensure(File).`)
	api := fmt.Sprintf("http://guest:guest@127.0.0.1:%d", port)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	testbench.WaitFor(t, "the management API", patience, func() bool {
		resp, err := client.Get(api + "/api/overview")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return node, api
}
