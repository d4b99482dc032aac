package consumer

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware/header"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		count         any
		redelivered   bool
		interruptions int
		limit         int
		want          verdict
		unseen        bool
	}{
		"first delivery":                  {nil, false, 0, 20, innocent, false},
		"forged by the producer":          {int64(100), false, 0, 20, innocent, false},
		"no number":                       {"100", true, 0, 20, innocent, false},
		"classic, redelivered":            {nil, true, 0, 20, innocent, false},
		"interrupted once":                {int64(1), true, 0, 20, innocent, false},
		"just below":                      {int64(4), true, 0, 20, innocent, false},
		"five times":                      {int64(5), true, 0, 20, suspect, false},
		"half of the limit":               {int64(10), true, 0, 20, endangered, false},
		"a quarter of a small limit":      {int64(2), true, 0, 8, suspect, false},
		"half of a small limit":           {int64(4), true, 0, 8, endangered, false},
		"a tiny limit":                    {int64(1), true, 0, 3, endangered, false},
		"a limit of one":                  {int64(1), true, 0, 1, endangered, false},
		"no limit":                        {int64(5), true, 0, NoLimit, suspect, false},
		"no limit, very often":            {int64(5000), true, 0, NoLimit, suspect, false},
		"suspected before":                {int64(1), true, 1, 20, suspect, false},
		"suspected before, back in peace": {nil, true, 2, 20, suspect, false},
		"isolated three times":            {int64(1), true, 3, 20, suspect, false},
		"isolated four times":             {int64(1), true, 4, 20, culprit, false},
		"suspected often, back in peace":  {nil, false, 1000, 20, suspect, false},
		"a limit that is not seen, once":  {int64(1), true, 0, NoLimit, innocent, true},
		"a limit that is not seen, twice": {int64(2), true, 0, NoLimit, endangered, true},
		"a tiny limit, perhaps tinier":    {int64(1), true, 0, 3, endangered, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw := amqp.Delivery{
				Redelivered: c.redelivered,
				Headers:     amqp.Table{"x-delivery-count": c.count},
			}
			require.Equal(t, c.want, judge(&raw, c.interruptions,
				&Limits{Deliveries: c.limit, Unseen: c.unseen}, false))
		})
	}
}

// A mark of the guard counts on a message that was interrupted or that is back from a wait queue.
func TestAForgedMarkMakesNoSuspect(t *testing.T) {
	t.Parallel()
	death := func(queue any) amqp.Table {
		return amqp.Table{"x-death": []any{
			amqp.Table{"queue": queue}, amqp.Table{"queue": "orders.wait.1s"},
		}}
	}
	for name, c := range map[string]struct {
		raw  amqp.Delivery
		want verdict
	}{
		"from the producer":  {amqp.Delivery{Headers: amqp.Table{}}, innocent},
		"given back once":    {amqp.Delivery{Headers: amqp.Table{}, Redelivered: true}, innocent},
		"from a wait queue":  {amqp.Delivery{Headers: death("orders.wait.5s")}, suspect},
		"from another queue": {amqp.Delivery{Headers: death("orders.parked")}, innocent},
		"x-death, no name":   {amqp.Delivery{Headers: death([]any{})}, innocent},
		"x-death, garbage": {
			amqp.Delivery{Headers: amqp.Table{"x-death": []any{"orders.wait.1s"}}}, innocent,
		},
		"by an exchange behind wait queues": {
			amqp.Delivery{Headers: amqp.Table{}, Exchange: "millpond.delayed"}, suspect,
		},
		"interrupted": {
			amqp.Delivery{
				Headers: amqp.Table{"x-delivery-count": int64(1)}, Redelivered: true,
			}, suspect,
		},
	} {
		s := &Subscription{cfg: Config{Queue: "orders", Waits: Waits{
			Queues: []string{"orders.wait.1s", "orders.wait.5s"}, KeyKept: []string{"millpond.delayed"},
		}}}
		c.raw.Headers[header.Queue], c.raw.Headers[keys.Interruptions] = "orders", "1"
		require.Equal(t, c.want, s.judge(&Channel{Limits: Limits{Deliveries: 20}}, &c.raw), name)
	}
}

// Before RabbitMQ 4.3 the end of a hold in an outage counts like the end of a process. So an old
// count does not make a culprit of a message, unless the message was isolated eight times.
func TestAHoldThatEndsIsNoCrash(t *testing.T) {
	t.Parallel()
	const hold = 10 * time.Minute
	now := time.Now()
	for name, c := range map[string]struct {
		waited        time.Time // when it was snoozed last
		nackCounts    bool
		interruptions int
		count         int64
		want          verdict
	}{
		"the process has ended at once":   {now.Add(-time.Second), true, 4, 1, culprit},
		"just before half a hold":         {now.Add(-hold/2 + time.Minute), true, 4, 1, culprit},
		"after half a hold":               {now.Add(-hold / 2), true, 4, 1, suspect},
		"several holds have ended":        {now.Add(-4 * hold), true, 4, 3, suspect},
		"many holds have ended":           {now.Add(-20 * hold), true, 4, 10, endangered},
		"the clock was set back":          {now.Add(hold), true, 4, 1, culprit},
		"4.3 counts the ends of channels": {now.Add(-hold), false, 4, 1, culprit},
		"no time is known":                {time.Time{}, true, 4, 1, culprit},
		"isolated seven times":            {now.Add(-hold), true, 7, 1, suspect},
		"isolated eight times":            {now.Add(-hold), true, 8, 1, culprit},
	} {
		s := &Subscription{cfg: Config{Queue: "orders"}}
		from := &Channel{
			Limits: Limits{Deliveries: 20, NackCounts: c.nackCounts}, hold: hold,
		}
		raw := amqp.Delivery{Redelivered: true, Headers: amqp.Table{"x-delivery-count": c.count}}
		state := header.RetryState{Interruptions: c.interruptions, WaitingSince: c.waited}
		state.EachHeader("orders", func(key, value string) { raw.Headers[key] = value })
		require.Equal(t, c.want, s.judge(from, &raw), name)
	}
}

func TestGuardTakesOneAtATime(t *testing.T) {
	t.Parallel()
	var g guard
	now := time.Now()
	require.True(t, g.take(now, time.Second))
	require.False(t, g.take(now.Add(time.Second), time.Second))
	require.True(t, g.take(now.Add(2*time.Second), time.Second))
}

func hasCome(own *turn) bool {
	select {
	case <-own.come:
		return true
	default:
		return false
	}
}

func TestTurnsComeInOrder(t *testing.T) {
	t.Parallel()
	var line turns
	first, second, third, fourth := line.join(), line.join(), line.join(), line.join()
	require.True(t, hasCome(first))
	require.False(t, hasCome(second))
	second.leave() // before its turn
	require.False(t, hasCome(third))
	first.leave()
	first.leave()
	require.True(t, hasCome(third))
	require.False(t, hasCome(second))
	require.False(t, hasCome(fourth))
	third.leave()
	require.True(t, hasCome(fourth))
	fourth.leave()
	require.True(t, hasCome(line.join()), "an empty line")
	var none *turn
	none.leave()
}

// Given old instances beside this one, whose nacks raise the count, then a message is no suspect.
// It is kept from the delivery limit.
func TestBesideOldInstancesOnlyTheLimitCounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		redelivered bool
		count       int64
		limit       int
		want        verdict
	}{
		"far from the limit":     {true, 9, 20, innocent},
		"half of the limit":      {true, 10, 20, endangered},
		"no limit":               {true, 1000, NoLimit, innocent},
		"a count of a producer":  {false, 1000, 20, innocent},
		"a limit of one":         {true, 1, 1, endangered},
		"not yet given back":     {true, 0, 20, innocent},
		"far beyond the limit":   {true, 1000, 20, endangered},
		"nearly half of it, odd": {true, 4, 9, innocent},
	} {
		raw := &amqp.Delivery{
			Redelivered: c.redelivered, Headers: amqp.Table{"x-delivery-count": c.count},
		}
		require.Equal(t, c.want, judgeBesideOld(raw, c.limit), name)
	}
}
