// Package testbroker gives tests a real RabbitMQ, and breaks it for them.
//
//	func TestMain(m *testing.M) { testbroker.Main(m) }
//
//	func TestReturns(t *testing.T) {
//		url := testbroker.URL(t)       // shared: never break it
//		queue := testbroker.Queue(t)   // a name for this test alone
//		...
//	}
//
//	func TestSurvivesRestart(t *testing.T) {
//		node := testbroker.Private(t)  // for this test alone: Stop, Kill, Freeze
//		proxy := testbroker.NewProxy(t, node.URL())
//		proxy.Tap(...)                // break the connection at a frame
//		...
//	}
//
// The broker comes from:
//
//	AMQP_URL set ───────────────► URL returns it; Private still starts nodes
//	rabbitmq-server installed ──► a node on free loopback ports, data in a temporary folder
//	MILLPOND_BROKER=4.0 | 4.3 ──► the same from a Debian chroot in the user's cache (install.sh)
//	none of them ───────────────► the test is skipped and names the missing package
//
// MILLPOND_NO_BROKER=1 skips every test that wants a broker. MILLPOND_REQUIRE_BROKER=1 fails these
// tests instead if there is no broker; MILLPOND_REQUIRE_BROKER=url does so for [URL] only.
//
// Every process of a node belongs to one process group. A small watchdog holds a pipe of the
// process that started the node. When that process ends, even by SIGKILL, the pipe closes: the
// watchdog kills the group and removes its files.
//
// [PrivateCluster] joins nodes to a cluster: they share an epmd and a process group, and each can
// be killed, frozen and started again alone. No plugin is enabled except by [Managed] and
// [Node.Enable].
package testbroker
