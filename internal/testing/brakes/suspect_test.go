package brakes_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware/outage"
)

// Given a suspect of the crash guard at the head of the queue, when the brake probes, then the
// suspect is tried. On RabbitMQ 4.3 it would come back before all others each time.
func TestASuspectIsProbed(t *testing.T) {
	t.Parallel()
	f := newFleet(t, plan{
		arguments: amqp.Table{},
		brake:     func(b *outage.Brake) { b.Successes = 2 },
	})
	f.add()
	operator := rig.OpenOperator(t, f.url)
	_, err := operator.StopBrake(t.Context(), f.name, "anna", "a test", 2*time.Second)
	require.NoError(t, err)
	f.awaitStopped(true)
	suspect := rig.Message("the suspect")
	suspect.Headers = rig.Suspect(f.queue)
	rig.Publish(t, f.url, "", f.queue, suspect)
	f.sent++
	f.send(5)
	f.awaitStopped(false)
	f.awaitHandled()
}
