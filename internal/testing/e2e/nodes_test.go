package e2e_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// sharedNode is a node that several tests use at once, because a start takes more processor time
// than they do. It ends with the test binary.
type sharedNode struct {
	once sync.Once
	node *testbroker.Node
	err  error
}

// get starts the node once.
func (s *sharedNode) get(
	t testing.TB, prepare func(*testbroker.Node), options ...testbroker.NodeOption,
) *testbroker.Node {
	t.Helper()
	testbroker.RequireNode(t)
	s.once.Do(func() {
		if s.node, s.err = testbroker.Start(context.Background(), options...); s.err == nil {
			prepare(s.node)
		}
	})
	require.NoError(t, s.err)
	return s.node
}

func (s *sharedNode) end() error {
	if s.node == nil {
		return nil
	}
	return s.node.Close()
}

// common is the node of commonNode, and impatient the node of impatientNode.
var common, impatient sharedNode

// api is the address of the management API of the common node.
var api string

// rules are vhosts of the common node, each with the definition of a policy on everything.
var rules = map[string]string{
	"alternate":     `{"alternate-exchange": "sink"}`,
	"shared quorum": `{"dead-letter-routing-key": "other"}`,
	// With these bits a message passes each level at once.
	"levels quorum": `{"dead-letter-routing-key": "0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.other"}`,
	"homeless":      `{"dead-letter-routing-key": "other"}`,
	"stuck":         `{"dead-letter-routing-key": "other"}`,
	"full":          `{"dead-letter-routing-key": "other"}`,
	"sibling":       `{"dead-letter-routing-key": "mail.sent"}`,
	"limited":       `{"delivery-limit": 8}`,
}

// commonNode returns a node with a TLS listener, the management API, the vhosts of the rules, and
// definitions. A test uses vhosts, queues and users of its own, and restarts nothing.
func commonNode(t testing.TB) *testbroker.Node {
	t.Helper()
	return common.get(t, func(node *testbroker.Node) {
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		require.NoError(t, err)
		address := listener.Addr().(*net.TCPAddr)
		api = "http://guest:guest@" + address.String()
		var list []string
		for vhost, definition := range rules {
			list = append(list, fmt.Sprintf("{<<%q>>, <<%q>>}", vhost, definition))
		}
		require.NoError(t, listener.Close())
		node.Ctl(t, "eval", fmt.Sprintf(`
			application:set_env(rabbitmq_management, tcp_config, [{port, %d}, {ip, "127.0.0.1"}]),
			By = <<"test">>, All = <<".*">>,
			[begin
				ok = rabbit_vhost:add(V, By),
				ok = rabbit_auth_backend_internal:set_permissions(<<"guest">>, V, All, All, All, By),
				ok = rabbit_policy:parse_set(V, <<"everything">>, All, D, <<"0">>, <<"all">>, By)
			end || {V, D} <- [%s]].`, address.Port, strings.Join(list, ", ")))
		node.Enable(t, "rabbitmq_management")
		// A node that imports may answer no handshake (F28).
		importDefinitions(t, node)
	}, testbroker.WithAdvancedConfig("[{rabbit, [{collect_statistics_interval, 500}, "+
		"{dead_letter_worker_publisher_confirm_timeout, 3000}]}]."), listensOnTLS())
}

// ruledBy returns the URL of a vhost of the common node.
func ruledBy(t testing.TB, vhost string) string {
	t.Helper()
	return commonNode(t).URL() + url.PathEscape(vhost)
}

// impatientNode returns a node with a consumer timeout of shortTimeout.
func impatientNode(t testing.TB) *testbroker.Node {
	t.Helper()
	return impatient.get(t, func(*testbroker.Node) {},
		testbroker.WithConsumerTimeout(shortTimeout, shortTimeout/8))
}

// listConnections is evaluated on a node.
const listConnections = `
	rabbit_networking:connection_info_all([ssl, peer_cert_subject, client_properties]).`

// changePassword is evaluated on a node: the user's connections end.
func changePassword(user, password string) string {
	return fmt.Sprintf(`
		ok = rabbit_auth_backend_internal:change_password(<<%q>>, <<%q>>, <<"test">>),
		%s`, user, password, endConnections(user))
}

// endConnections is evaluated on a node.
func endConnections(user string) string {
	return fmt.Sprintf("rabbit_networking:close_all_user_connections(<<%q>>, \"by a test\").", user)
}
