package operate_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/topology"
)

// count stops the services, takes all messages out of all queues, and notes the fate of each
// message.
func (g *governed) count() {
	t := g.t
	t.Helper()
	var stopped sync.WaitGroup
	for _, s := range g.everyone() {
		stopped.Go(s.stop)
	}
	stopped.Wait()
	places := map[string][]string{} // queues where a message was, by its payload
	var held map[string]int
	for {
		found := g.drain(places)
		if held != nil && found == 0 {
			break
		}
		held = map[string]int{}
		if g.missing(places) { // else the question is not worth a second of processor time
			held = g.held()
		}
	}
	owner := map[string]string{}
	for _, s := range g.everyone() {
		owner[s.queue], owner[s.plan.Dead.RoutingKey] = s.queue, s.queue
	}
	for _, s := range g.everyone() {
		for id := range s.foreign {
			places[id] = append(places[id], s.queue)
		}
	}
	for _, s := range g.services {
		s.locate(places, held, owner)
	}
}

// locate notes where the messages of a service are.
func (s *governedService) locate(
	places map[string][]string, held map[string]int, owner map[string]string,
) {
	if s.refusal != nil {
		return
	}
	for n := range perService {
		at := places[s.id(n)]
		own := slices.DeleteFunc(slices.Clone(at),
			func(queue string) bool { return owner[queue] != "" && owner[queue] != s.queue })
		for _, queue := range at {
			switch {
			case owner[queue] == "" || owner[queue] == s.queue:
			case s.calls[s.id(n)] > 0:
				s.begun = append(s.begun, s.id(n)+" in "+queue)
			default:
				s.strays = append(s.strays, s.id(n)+" in "+queue)
			}
		}
		switch {
		case s.handled[s.id(n)]:
			s.places["handled"]++
		case !s.entered[s.id(n)] && len(at) == 0:
			s.places["refused"]++
		case len(at) == 0:
			s.lost++
		case len(own) > 0:
			s.places[s.word(own)]++
		}
	}
	for _, q := range s.plan.Queues {
		kept := min(held[q.Name], s.lost) // which of them the broker does not tell
		s.lost -= kept
		if kept > 0 {
			s.places["held"] += kept
		}
	}
}

// word says in which sort of queue a message is: the best of those where copies of it are.
func (s *governedService) word(queues []string) string {
	for _, place := range []struct {
		word string
		has  func(queue string) bool
	}{
		{"dead", func(queue string) bool { return queue == s.plan.Dead.RoutingKey }},
		{"queued", func(queue string) bool { return queue == s.queue }},
		{"waiting", func(queue string) bool {
			return slices.ContainsFunc(s.plan.Queues,
				func(q topology.Queue) bool { return q.Name == queue && q.Delay > 0 })
		}},
		{"stranded", func(queue string) bool { return strings.HasSuffix(queue, ".stranded") }},
	} {
		if slices.ContainsFunc(queues, place.has) {
			return place.word
		}
	}
	return "elsewhere"
}

// missing reports whether a message of some service is in no queue, and was not handled.
func (g *governed) missing(places map[string][]string) bool {
	return slices.ContainsFunc(g.services, func(s *governedService) bool {
		for n := range perService {
			if s.entered[s.id(n)] && !s.handled[s.id(n)] && len(places[s.id(n)]) == 0 {
				return true
			}
		}
		return false
	})
}

// drain takes all messages out of the queues of the virtual host, and returns their number.
func (g *governed) drain(places map[string][]string) int {
	t := g.t
	t.Helper()
	conn, err := amqp.Dial(g.url)
	require.NoError(t, err)
	defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
	names := map[string]bool{catchAll: true}
	for _, s := range g.everyone() {
		names[s.queue] = true
		for _, q := range s.plan.Queues {
			names[q.Name] = true
		}
	}
	found := 0
	for _, name := range slices.Sorted(maps.Keys(names)) {
		ch, err := conn.Channel()
		require.NoError(t, err)
		for {
			d, ok, err := ch.Get(name, true)
			if err != nil || !ok {
				break // empty, or deleted by its policy
			}
			found++
			places[string(d.Body)] = append(places[string(d.Body)], name)
		}
		_ = ch.Close()
	}
	return found
}

var heldIn = regexp.MustCompile(`\{<<"([^"]*)">>,(\d+)\}`)

// held returns how many messages quorum queues keep because they cannot place them. AMQP counts
// them nowhere (F5), and the management API seconds late.
func (g *governed) held() map[string]int {
	g.t.Helper()
	said := g.broker.node.Ctl(g.t, "eval", fmt.Sprintf(`[begin
		{ok, {_, {N, _}}, _} = ra:local_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_stat_dlx/1),
		{element(4, amqqueue:get_name(Q)), N}
	end || Q <- rabbit_amqqueue:list(<<%q>>),
		amqqueue:get_type(Q) =:= rabbit_quorum_queue].`, g.vhost))
	found := map[string]int{}
	for _, m := range heldIn.FindAllStringSubmatch(strings.Join(strings.Fields(said), ""), -1) {
		found[m[1]], _ = strconv.Atoi(m[2])
	}
	return found
}
