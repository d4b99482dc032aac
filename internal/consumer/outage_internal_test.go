package consumer

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// A probe costs a delivery, so the pauses between probes grow. A message that has no
// delivery left is spared for a day.
func TestPausesBetweenProbesGrow(t *testing.T) {
	t.Parallel()
	var o outage
	require.True(t, o.begin(20, false))
	require.False(t, o.begin(19, false), "several messages are held at once")
	require.Zero(t, o.pause(), "the first probe")
	var pauses []time.Duration
	for range 7 {
		o.begin(5, true)
		pauses = append(pauses, o.pause())
	}
	require.Equal(t, []time.Duration{
		time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute,
		30 * time.Minute, 30 * time.Minute,
	}, pauses)
	o.begin(0, true)
	require.Equal(t, 24*time.Hour, o.pause())
	over := o.over(true)
	require.NotNil(t, over)
	require.Nil(t, o.over(false), "a consumer that does not probe goes on")
	o.end()
	<-over
	require.True(t, o.begin(3, false), "another outage")
	require.Zero(t, o.pause())
}

// A consumer timeout that has struck can only shorten the hold.
func TestConsumerTimeoutThatStruckShortensTheHold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ seen, want time.Duration }{
		"none":    {0, 4 * time.Minute},
		"shorter": {10 * time.Second, 5 * time.Second},
		"longer":  {time.Hour, 4 * time.Minute},
	} {
		s := &Subscription{cfg: Config{Group: &Group{ConfirmTimeout: 10 * time.Second}}}
		s.timeout.Store(int64(c.seen))
		require.Equal(t, c.want, s.hold(5*time.Minute), name)
	}
}

// Given an outage, then the confirm of a copy that was published before it does not end it: that
// confirm may have been late. The confirm of a copy that was published since then does.
func TestALateConfirmEndsNoOutage(t *testing.T) {
	t.Parallel()
	d := &delivery{sub: &Subscription{}}
	o := &d.sub.outage
	o.logged.Do(func() {})
	before := o.begun.Load()
	require.True(t, o.begin(20, false))

	d.during = before
	require.NoError(t, o.note(d, nil))
	require.True(t, o.active.Load(), "the copy was published before the outage")

	d.during = o.begun.Load()
	require.ErrorIs(t, o.note(d, errCannotStore), errCannotStore)
	require.True(t, o.active.Load(), "the copy was not stored")
	require.NoError(t, o.note(d, nil))
	require.False(t, o.active.Load(), "a copy was stored")

	require.True(t, o.begin(20, false))
	require.NoError(t, o.note(d, nil))
	require.True(t, o.active.Load(), "the copy was published in an earlier outage")
}

// A message of the line may arrive long before it is handled. Where nothing limits how long it is
// held, its hold begins with its handling.
func TestTheHoldOfAMessageThatHasWaitedInTheLine(t *testing.T) {
	t.Parallel()
	hour := Arrival{At: time.Now().Add(-time.Hour), Step: asArrived{}}
	for name, c := range map[string]struct {
		nackCounts bool
		want       time.Time
	}{
		"without a consumer timeout": {false, time.Now().Add(time.Minute)},
		"with a consumer timeout":    {true, hour.At.Add(time.Minute)},
	} {
		s := &Subscription{cfg: Config{Queue: "orders", Keeper: copies{}}, stop: t.Context()}
		hour.On = &Channel{
			ctx: t.Context(), hold: time.Minute,
			Limits: Limits{NackCounts: c.nackCounts, Together: true},
		}
		d, end := s.newDelivery(hour)
		defer end()
		require.WithinDuration(t, c.want, d.HoldUntil, 10*time.Second, name)
	}
}

// Given a probe of a stopped brake, when its channel ends before a message comes, then it is
// undecided: the queue is not empty.
func TestAProbeWhoseChannelEndsIsUndecided(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{true, false} {
		deliveries := make(chan amqp.Delivery)
		if ends {
			close(deliveries)
		}
		stop, cancel := context.WithCancel(t.Context())
		s := New(stop, stop, Config{Group: &Group{}, Consume: Consume{Concurrency: 1}})
		c := &Channel{deliveries: deliveries, use: ToGetOne, lane: noLane{}, ctx: stop}
		if !ends {
			cancel()
		}
		_, came := s.receive(c)
		require.False(t, came)
		require.Equal(t, ends, c.ended)
		cancel()
	}
}
