package discover_test

import (
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/topology"
)

// Each way back is told truly, and only the ways that there are.
func severalWays(p place) {
	const fanout = "amq.fanout"
	for _, queue := range []string{"two", "both"} {
		p.provision(queue, topology.PerQueue{Via: []string{exchangeOfUser}}, time.Second)
	}
	p.provision("two", topology.PerQueue{Via: []string{fanout}}, time.Minute)
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
			`its plan has no Via: through exchanges "amq.fanout" and "millpond.return.amq.fanout"; ` +
			`through exchanges "amq.topic" and "millpond.return.amq.topic"`},
		"both": {[]string{exchangeOfUser}, `return by 3 ways, of which a plan has one, so that its ` +
			`plan has no Via: by the name of the queue; through exchange "millpond.return"; ` +
			`through exchanges "amq.topic" and "millpond.return.amq.topic"`},
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
