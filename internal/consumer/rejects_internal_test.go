package consumer

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware/header"
)

// Given a message that this process has rejected, so that its queue must hold it for a second times
// its delivery count, when the message is back too soon, then the process rejects no more messages.
// Another process may have rejected it in between: then its count is higher than expected.
func TestAMessageThatIsBackTooSoon(t *testing.T) {
	t.Parallel()
	now := time.Now()
	rejected := func(count int64, ago time.Duration) pastReject {
		return pastReject{"a", count, now.Add(-ago)}
	}
	const soon, late = 100 * time.Millisecond, time.Hour
	for name, c := range map[string]struct {
		past  []pastReject
		count int64 // with which the message is back
		early bool
	}{
		"after its delay":                  {[]pastReject{rejected(3, 3*time.Second)}, 3, false},
		"a little early, by its clock":     {[]pastReject{rejected(3, 2*time.Second)}, 3, false},
		"at once":                          {[]pastReject{rejected(3, soon)}, 3, true},
		"at once, rejected elsewhere, too": {[]pastReject{rejected(1, soon)}, 2, true},
		"much later, rejected elsewhere":   {[]pastReject{rejected(1, late)}, 7, false},
		"the last reject counts":           {[]pastReject{rejected(1, late), rejected(2, soon)}, 4, true},
		"a new count, which a copy began":  {[]pastReject{rejected(8, soon)}, 1, false},
		"a count that a copy began again":  {[]pastReject{rejected(1, late), rejected(1, soon)}, 1, true},
		"the first of two duplicates": {
			[]pastReject{rejected(1, time.Second), rejected(1, soon)}, 1, false,
		},
		"another message":                   {[]pastReject{{"b", 1, now.Add(-soon)}}, 1, false},
		"rejected by other processes alone": {nil, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, on := countedDelivery(t, c.count, now)
			d.id = "a"
			for _, r := range c.past {
				d.sub.lastRejects.add(r, time.Duration(r.count)*time.Second)
			}
			d.noteEarly()
			require.Equal(t, c.early, on.holdsNone.Load())
		})
	}
}

// A message that has failed once, with an error in its copy, and that was rejected since then has
// the failures of both. The error is not the last one, which the broker does not keep. A consumer
// that rejects nothing counts the rejects of others and takes them for no ends of processes.
func TestFailuresThatTheBrokerCountsLeaveNoError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change   func(w *Waits, l *Limits)
		failures int
		verdict  verdict
	}{
		"its own rejects": {func(*Waits, *Limits) {}, 6, innocent},
		"rejects of others": {
			func(w *Waits, l *Limits) { l.Rejected, w.Rejected = w.Rejected, nil }, 6, innocent,
		},
		"nothing is rejected": {func(w *Waits, _ *Limits) { w.Rejected = nil }, 1, suspect},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, on := countedDelivery(t, 5, time.Now())
			c.change(&d.sub.cfg.Waits, &on.Limits)
			copied := header.RetryState{Failures: 1, Error: "no stock", Class: header.ClassRetryable}
			for key, value := range copied.Headers("orders") {
				d.raw.Headers[key] = value
			}
			d, end := d.sub.newDelivery(Arrival{Raw: d.raw, At: time.Now(), On: on, Step: asArrived{}})
			defer end()
			require.Equal(t, c.failures, d.State.Failures)
			require.Equal(t, c.failures == 1, d.State.Error != "" && d.State.Class != "")
			require.Equal(t, c.verdict, d.sub.judge(on, &d.raw))
		})
	}
}

// A delivery waits exactly as long as it asks if its queue holds it so long at its next delivery
// count. Otherwise a copy waits, here for half as long again. The limits on age, expiration and
// Snooze count this time.
func TestADelayIsExactOnlyWhereItsDeliveryIsRejected(t *testing.T) {
	t.Parallel()
	const asked = 2 * time.Second
	for name, c := range map[string]struct {
		count int64
		set   func(d *delivery)
		want  time.Duration
	}{
		"its second failure":     {1, func(*delivery) {}, asked},
		"its first failure":      {0, func(*delivery) {}, 3 * time.Second},
		"an expiration":          {1, func(d *delivery) { d.raw.Expiration = "60000" }, 3 * time.Second},
		"no id":                  {1, func(d *delivery) { d.id = "" }, 3 * time.Second},
		"isolated by the guard":  {1, func(d *delivery) { d.State.Interruptions = 1 }, 3 * time.Second},
		"a queue without a hold": {1, func(d *delivery) { d.on.holdsNone.Store(true) }, 3 * time.Second},
		"a low delivery limit":   {1, func(d *delivery) { d.on.Deliveries = 4 }, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, _ := countedDelivery(t, c.count, time.Now())
			d.id = "a"
			c.set(d)
			require.Equal(t, c.want, d.Given(asked))
		})
	}
}

// countedDelivery returns a delivery with a delivery count, of a queue that holds a rejected
// message for a second times the count, and whose wait queues make each wait half as long again.
func countedDelivery(t *testing.T, count int64, arrived time.Time) (*delivery, *Channel) {
	t.Helper()
	s := &Subscription{
		cfg: Config{
			Queue: "orders",
			Waits: Waits{
				Given:    func(asked time.Duration) time.Duration { return asked },
				Copied:   func(asked time.Duration) time.Duration { return asked * 3 / 2 },
				Rejected: func(count int) time.Duration { return time.Duration(count) * time.Second },
			},
		},
		logger: watermill.NopLogger{}, stop: t.Context(),
	}
	on := &Channel{ctx: t.Context(), hold: time.Minute, Limits: Limits{Deliveries: 20}}
	raw := amqp.Delivery{Redelivered: count > 0}
	if count > 0 {
		raw.Headers = amqp.Table{"x-delivery-count": count, "x-acquired-count": count}
	}
	d, end := s.newDelivery(Arrival{Raw: raw, At: arrived, On: on, Step: asArrived{}})
	t.Cleanup(end)
	return d, on
}

// The memory of rejects is bounded: the oldest is forgotten first.
func TestTheOldestRejectIsForgotten(t *testing.T) {
	t.Parallel()
	var p pastRejects
	for i := range mostPastRejects + 1 {
		p.add(pastReject{id: fmt.Sprint(i), count: 1}, time.Second)
	}
	_, first := p.soonest("0", 1)
	_, second := p.soonest("1", 1)
	_, last := p.soonest(fmt.Sprint(mostPastRejects), 1)
	require.Equal(t, []bool{false, true, true}, []bool{first, second, last})
}
