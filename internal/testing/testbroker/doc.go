// Package testbroker gives tests a real RabbitMQ, and breaks it for them.
//
//	func TestMain(m *testing.M) { testbroker.Main(m) }
//
//	func TestReturns(t *testing.T) {
//		url := testbroker.URL(t)       // shared: never break it
//		queue := testbroker.Queue(t)   // a name of this test's own
//		...
//	}
//
//	func TestSurvivesRestart(t *testing.T) {
//		node := testbroker.Private(t)  // this test's own: Stop, Kill, Freeze
//		proxy := testbroker.NewProxy(t, node.URL())
//		proxy.Tap(...)                // break the connection at a frame
//		...
//	}
//
// Where the broker comes from:
//
//	AMQP_URL set ───────────────► URL is that; Private still starts nodes of its own
//	rabbitmq-server installed ──► a node on free loopback ports, data in a temporary folder
//	MILLPOND_BROKER=4.0 | 4.3 ──► the same from a Debian chroot in the user's cache (install.sh makes it)
//	none of them ───────────────► the test is skipped, and says what is missing
//
// MILLPOND_NO_BROKER=1 skips every test that wants a broker. MILLPOND_REQUIRE_BROKER=1 fails them
// instead where none can be had; MILLPOND_REQUIRE_BROKER=url does so for [URL] only.
//
// Every process of a node belongs to one process group. A small watchdog holds a pipe of the
// process that started the node; when that process ends, however it ends, the pipe closes and the
// watchdog kills the group and removes its files.
//
// [PrivateCluster] joins nodes to a cluster: they share an epmd and a process group, each can be
// killed, frozen and started again by itself. The only plugin the bench enables is that of
// [Managed].
package testbroker
