// Package delayedx has scenarios on a broker with RabbitMQ's delayed-message plugin: what
// topology.DelayedExchange promises and what the plugin loses. A scenario is skipped, with the
// reason, where the plugin is not there: see testbroker.DelayedPlugin.
package delayedx
