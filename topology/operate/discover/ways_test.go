package discover_test

import (
	"context"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// A queue whose service is of an earlier version has one return exchange for its exchange, and wait
// queues with another ending. Later its service is of today, and the old wait queues drain.
func olderWay(p place) {
	today := topology.PerQueue{Via: []string{exchangeOfUser}}
	plan := rig.PlanOf(p.t, today, "q", time.Second)
	rename := func(name string) string {
		name = strings.Replace(name, "q.wait.1s.via", "q.wait.1s.to."+exchangeOfUser, 1)
		return strings.Replace(name, "millpond.via", "millpond.return."+exchangeOfUser, 1)
	}
	for i := range plan.Queues {
		q := &plan.Queues[i]
		q.Name = rename(q.Name)
		if to, ok := q.Arguments["x-dead-letter-exchange"].(string); ok {
			q.Arguments["x-dead-letter-exchange"] = rename(to)
		}
	}
	for i := range plan.Exchanges {
		e := &plan.Exchanges[i]
		e.Name = rename(e.Name)
		e.Arguments["alternate-exchange"] = rename(e.Arguments["alternate-exchange"].(string))
	}
	for i := range plan.Bindings {
		b := &plan.Bindings[i]
		b.Exchange, b.Queue = rename(b.Exchange), rename(b.Queue)
		if b.Header == keys.Via {
			b.Value = "through q"
		}
	}
	rig.DeclareQueue(p.t, p.url, "q", amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30), // as Provision does
	})
	ch := testbroker.Channel(p.t, p.url)
	run := func(_ context.Context, use func(*amqp.Channel) error) error { return use(ch) }
	require.NoError(p.t, plan.Declare(p.t.Context(), run, watermill.NopLogger{}))
	m := p.main("q")
	require.NoError(p.t, m.PlanErr)
	require.Equal(p.t, []string{"q.wait.1s.to." + exchangeOfUser}, names(m.Waits))
	require.Equal(p.t, []string{exchangeOfUser}, m.Vias)
	require.Nil(p.t, m.Plan.Via)

	p.provision("q", today, time.Minute)
	m = p.main("q")
	require.NoError(p.t, m.PlanErr)
	require.Len(p.t, m.Waits, 3, "the step of snoozed messages, too")
	require.Equal(p.t, []string{exchangeOfUser}, m.Vias)
}

// The levels of an earlier version that route by headers are told, and are in no plan.
func olderLevels(p place) {
	plan := p.provision("q", topology.PerQueue{Via: []string{exchangeOfUser}}, time.Second)
	const enter, in = "millpond.level.enter.via", "millpond.level.0.via.in"
	const first, second = "millpond.level.0.via", "millpond.level.1.via"
	level0 := func(value string) amqp.Table { return amqp.Table{keys.Level + "0": value} }
	for level, to := range map[string]string{first: "millpond.via", second: first} {
		q := topology.WaitQueue(level, 100*time.Millisecond, topology.Route{Exchange: to})
		rig.DeclareQueue(p.t, p.url, q.Name, q.Arguments)
	}
	ch := testbroker.Channel(p.t, p.url)
	require.NoError(p.t, ch.ExchangeDeclare(enter, "headers", true, false, false, false,
		amqp.Table{"alternate-exchange": enter}))
	rig.DeclareExchange(p.t, p.url, first, "headers")
	rig.DeclareExchange(p.t, p.url, in, "fanout")
	require.NoError(p.t, ch.QueueBind(first, "", in, false, nil))
	require.NoError(p.t, ch.QueueBind(first, "", enter, false, level0("first")))
	require.NoError(p.t, ch.ExchangeBind(in, "", first, false, level0("next")))
	v := p.find()
	m, _ := v.Main("q")
	requirePlan(p.t, plan, m.Plan)
	require.Empty(p.t, v.Orphans)
	for _, level := range []string{first, second} {
		told(p.t, v, "", `"`+level+`"`, "as a level of an earlier version")
	}
}

// Each way back is told truly, and only the ways that there are.
func severalWays(p place) {
	const fanout = "amq.fanout"
	for _, queue := range []string{"two", "both"} {
		p.provision(queue, topology.PerQueue{Via: []string{exchangeOfUser}}, time.Second)
	}
	p.provision("two", topology.Shared{Via: []string{fanout}, Prefix: "other"}, time.Minute)
	p.provision("both", topology.PerQueue{}, time.Minute)
	p.provision("both", topology.Shared{}, time.Hour)
	p.provision("none", topology.PerQueue{}, time.Minute)
	p.provision("none", topology.Shared{}, time.Hour)
	v := p.find()
	for queue, c := range map[string]struct {
		vias []string
		ways string
	}{
		"two": {[]string{fanout, exchangeOfUser}, `return by 2 ways, of which a plan has one, so that ` +
			`its plan has no Via: through exchange "millpond.via" and exchanges of yours; ` +
			`through exchange "other.via" and exchanges of yours`},
		"both": {[]string{exchangeOfUser}, `return by 3 ways, of which a plan has one, so that its ` +
			`plan has no Via: by the name of the queue; through exchange "millpond.return"; ` +
			`through exchange "millpond.via" and exchanges of yours`},
		"none": {},
	} {
		m, ok := v.Main(queue)
		require.True(p.t, ok)
		require.Nil(p.t, m.Plan.Via)
		require.Equal(p.t, c.vias, m.Vias)
		if c.ways != "" {
			told(p.t, v, queue, `queue "`+queue+`"`, c.ways)
			continue
		}
		for _, u := range v.Unclear {
			require.False(p.t, u.Queue == queue && strings.Contains(u.Text, "ways"), u)
		}
	}
}
