package discover_test

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
	"github.com/millpond-go/millpond/topology/operate/discover"
)

// The exchange before a stranded queue was deleted: the queue is found with its messages. A queue
// of that name with other arguments is not millpond's, and dead letters are not stranded.
func strandedByName(p place) {
	ch := testbroker.Channel(p.t, p.url)
	p.provision("q", topology.Shared{}, time.Second)
	p.provision("c", topology.Shared{Type: topology.Classic, Prefix: "c"}, time.Second)
	dead := topology.DeadLetters{Name: func(string) string { return "letters.stranded" }}
	p.provision("named", topology.PerQueue{Dead: dead}, time.Second)
	rig.DeclareQueue(p.t, p.url, "theirs.stranded", amqp.Table{"x-queue-type": "quorum"})
	const sentence = `queue "millpond.stranded" has the name and the arguments of a stranded queue`
	require.NotContains(p.t, texts(p.find()), sentence)
	for _, exchange := range []string{"c.stranded", "millpond.stranded"} {
		require.NoError(p.t, ch.ExchangeDelete(exchange, false, false))
	}
	rig.Fill(p.t, p.url, "millpond.stranded", 2)
	die(p, "letters.stranded", "named", time.Now())
	o := rig.OpenOperator(p.t, p.url, operate.WithManagement(p.api))
	var v discover.Vhost
	rig.WaitFor(p.t, "the counts of the management API", func() bool {
		v = p.find(discover.WithLooks(o))
		m, _ := v.Main("named")
		return len(v.Stranded) == 2 && v.Stranded[1].Total.N == 2 && len(m.Dead) == 1
	})
	require.Equal(p.t, "c.stranded", v.Stranded[0].Name)
	require.Equal(p.t, "millpond.stranded", v.Stranded[1].Name)
	require.Empty(p.t, v.Unclaimed)
	told(p.t, v, "", sentence, `no stranded exchange "millpond.stranded" leads into it`)
	require.NotContains(p.t, texts(v), "letters.stranded")
	require.NotContains(p.t, texts(v), "theirs")
}

// texts returns all that is unclear, a line each.
func texts(v discover.Vhost) string {
	text := ""
	for _, u := range v.Unclear {
		text += u.String() + "\n"
	}
	return text
}
