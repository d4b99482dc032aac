package native

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/consumer"
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
			p, k := counted(c.count, now)
			for _, r := range c.past {
				p.past.add(r, time.Duration(r.count)*time.Second)
			}
			p.Came(k)
			require.Equal(t, c.early, p.holdsNone(k.On))
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
		set   func(k *consumer.Kept)
		want  time.Duration
	}{
		"its second failure": {1, func(*consumer.Kept) {}, asked},
		"its first failure":  {0, func(*consumer.Kept) {}, 3 * time.Second},
		"an expiration": {
			1, func(k *consumer.Kept) { k.Raw.Expiration = "60000" }, 3 * time.Second,
		},
		"no id":                  {1, func(k *consumer.Kept) { k.ID = "" }, 3 * time.Second},
		"isolated by the guard":  {1, func(k *consumer.Kept) { k.Isolated = true }, 3 * time.Second},
		"a queue without a hold": {1, func(k *consumer.Kept) { k.On.HoldsNone = true }, 3 * time.Second},
		"a low delivery limit":   {1, func(k *consumer.Kept) { k.On.Deliveries = 4 }, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, k := counted(c.count, time.Now())
			c.set(k)
			given := p.Given(k, func(asked time.Duration) time.Duration { return asked * 3 / 2 })
			require.Equal(t, c.want, given(asked))
		})
	}
}

// counted returns message a with a delivery count, and the Keeper of a queue that holds a rejected
// message for a second times the count.
func counted(count int64, arrived time.Time) (*Keeper, *consumer.Kept) {
	raw := &amqp.Delivery{Redelivered: count > 0}
	if count > 0 {
		raw.Headers = amqp.Table{"x-delivery-count": count, "x-acquired-count": count}
	}
	on := &consumer.Channel{Limits: consumer.Limits{Deliveries: 20}}
	held := func(count int) time.Duration { return time.Duration(count) * time.Second }
	k := &consumer.Kept{ID: "a", Raw: raw, On: on, Arrived: arrived}
	return New(held, watermill.NopLogger{}), k
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
