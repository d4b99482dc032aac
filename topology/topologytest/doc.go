// Package topologytest tests a topology.Strategy on a real RabbitMQ: yours, or one of package
// topology with the fields that you set.
//
//	func TestStrategy(t *testing.T) {
//		topologytest.Run(t, topologytest.Config{
//			Strategy: Mine{},
//			URL:      "amqp://guest:guest@localhost:5672/",
//		})
//	}
//
// Run has a subtest for each promise, and its failures say which promise is broken and what to do.
// It takes about five seconds, because messages wait for up to three of them. Without a URL it
// tests the plans alone.
//
// Any RabbitMQ from 3.10 on will do, also a broker that other programs use: all queues have new
// names, and no queue is deleted that another program may share. If the broker lacks a part, such
// as a plugin that the strategy needs, Run ends with the broker's error.
package topologytest
