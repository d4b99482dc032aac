// Package delayedx has scenarios on a broker with RabbitMQ's delayed-message plugin. They show the
// promises of topology.DelayedExchange. A scenario is skipped, with the reason, if the plugin is
// not there: see testbroker.DelayedPlugin.
package delayedx
