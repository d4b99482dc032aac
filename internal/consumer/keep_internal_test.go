package consumer

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware/header"
)

// A message that has failed once, with an error in its copy, and that was rejected since then has
// the failures of both. The error is not the last one, which the broker does not keep. A consumer
// that rejects nothing counts the rejects of others and takes them for no ends of processes.
func TestFailuresThatTheBrokerCountsLeaveNoError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rejected func(count int) time.Duration
		failures int
		verdict  verdict
	}{
		"rejects, its own or of others": {
			func(count int) time.Duration { return time.Duration(count) * time.Second }, 6, innocent,
		},
		"nothing is rejected": {nil, 1, suspect},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			on := &Channel{
				ctx: t.Context(), hold: time.Minute, Limits: Limits{Deliveries: 20, Rejected: c.rejected},
			}
			s := &Subscription{
				cfg: Config{Queue: "orders", Keeper: copies{}}, logger: watermill.NopLogger{},
				stop: t.Context(),
			}
			raw := amqp.Delivery{Redelivered: true, Headers: amqp.Table{
				"x-delivery-count": int64(5), "x-acquired-count": int64(5),
			}}
			copied := header.RetryState{Failures: 1, Error: "no stock", Class: header.ClassRetryable}
			for key, value := range copied.Headers("orders") {
				raw.Headers[key] = value
			}
			d, end := s.newDelivery(Arrival{Raw: raw, At: time.Now(), On: on, Step: asArrived{}})
			defer end()
			require.Equal(t, c.failures, d.State.Failures)
			require.Equal(t, c.failures == 1, d.State.Error != "" && d.State.Class != "")
			require.Equal(t, c.verdict, s.judge(on, &raw))
		})
	}
}
