package management_test

import (
	"context"
	"fmt"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/management"
)

// An address that is wrong is an error of Open, before it connects.
func ExampleAt() {
	cfg := wamqp.ConnectionConfig{AmqpURI: "amqp://shop:secret@rabbit-1/"}
	_, err := topology.Open(context.Background(), cfg, topology.PerQueue{},
		topology.WithManagement(management.At("watcher:secret@rabbit-1:15671")))
	fmt.Println(err)
	// Output: open millpond client: WithManagement: the URL must begin with http:// or https://
}
