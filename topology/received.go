package topology

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
)

// Received returns the delivery behind the message that ctx belongs to, exactly
// as it arrived: properties, and headers with their AMQP types, those of the
// broker among them. Only live notes that belong to another queue are missing, and
// a message that has waited has the priority that it arrived with first.
// It is a copy, may be changed, and cannot be acked; false where the message did
// not come from a Subscriber of this package.
func Received(ctx context.Context) (amqp.Delivery, bool) {
	attached := middleware.DeliveryOf(ctx, nil)
	if attached == nil {
		return amqp.Delivery{}, false
	}
	d, ok := attached.Source.(*delivery)
	if !ok {
		return amqp.Delivery{}, false
	}
	return wire.Clone(&d.raw), true
}
