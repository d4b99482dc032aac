package rig

import amqp "github.com/rabbitmq/amqp091-go"

// OneActive returns the arguments of a queue that is handled in order.
func OneActive() amqp.Table {
	return amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true}
}
