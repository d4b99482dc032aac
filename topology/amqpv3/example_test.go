package amqpv3_test

import (
	"context"
	"log"

	wamqp3 "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"

	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/amqpv3"
)

// The three constructors take v3's configuration; everything else is package topology.
func ExampleOpen() {
	cfg := wamqp3.NewDurableQueueConfig("amqp://guest:guest@127.0.0.1:5672/")
	client, err := amqpv3.Open(context.Background(), cfg.Connection, topology.PerQueue{})
	if err != nil {
		log.Print(err)
		return
	}
	defer client.Close()
	sub, err := amqpv3.NewSubscriber(client, cfg)
	if err != nil {
		log.Print(err)
		return
	}
	defer sub.Close()
	pub, err := amqpv3.NewPublisher(client, cfg)
	if err != nil {
		log.Print(err)
		return
	}
	defer pub.Close()
}
