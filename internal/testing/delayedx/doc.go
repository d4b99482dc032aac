// Package delayedx has scenarios on a broker with RabbitMQ's delayed-message plugin. They show the
// promises of topology.DelayedExchange and the losses of the plugin. A scenario is skipped, with
// the reason, if the plugin is not there: see testbroker.DelayedPlugin.
package delayedx
