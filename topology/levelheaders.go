package topology

import (
	"cmp"
	"math/bits"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/middleware/header"
)

// headersPlan is the plan of Levels with Via. A message keeps its own routing key, so each level
// that it passes has a header, and exchanges of the type headers route by them:
//
//	orders ── fails ──► exchange millpond.level.enter.via, headers level-2: first, level-0: next
//	                         │ level-2 is "first"
//	                         ▼
//	           queue millpond.level.2.via ── TTL 400ms ──► exchange millpond.level.1.via
//	                                                             │ no level-1, so its alternate
//	                                                             ▼
//	           exchange millpond.level.0.via.in ◄── level-0 ── exchange millpond.level.0.via
//	                  │                     │ the queue is gone
//	                  ▼                     ▼
//	           queue millpond.level.0.via   millpond.stranded
//	                  │ TTL 100ms
//	                  ▼
//	           exchange millpond.via: see the type Via
//
// A headers exchange cannot ask for a header that is absent. So the exchange of the next lower
// level is the alternate exchange. The exchange before a queue is there because its binding stays
// when the queue vanishes: without it the message would skip the level and come too early.
func (s Levels) headersPlan(
	p *planner, routes LevelRoutes, prefix, suffix string,
) (Plan, error) {
	back := p.wayBack(s.Via, prefix, s.Type)
	suffix += back.suffix()
	name := func(level int) string { return prefix + ".level." + strconv.Itoa(level) + suffix }
	routes.Exchange = prefix + ".level.enter" + suffix
	p.exchange(Exchange{Name: routes.Exchange, Kind: "headers"}, "entry exchange")
	next := back.Through
	for level := range routes.Levels {
		q := s.Type.waitQueue(name(level), routes.Resolution<<level, Route{Exchange: next})
		route := routes.route(q.Delay)
		route.RoutingKey = p.plan.Queue
		p.step(q, route, s.WaitArguments)
		p.bindLevel(routes.Exchange, level, header.LevelFirst, Binding{Queue: q.Name})
		if level == routes.Levels-1 {
			break // no level is above the highest
		}
		in := q.Name + ".in"
		p.exchange(Exchange{Name: in, Kind: "fanout", Arguments: alternateTo(back.stranded)},
			"exchange before level "+strconv.Itoa(level))
		p.exchange(Exchange{Name: q.Name, Kind: "headers", Arguments: alternateTo(next)},
			"exchange of level "+strconv.Itoa(level))
		p.bind(in, "", q.Name)
		p.bindLevel(q.Name, level, header.LevelNext, Binding{ToExchange: in})
		next = q.Name
	}
	p.bindBack(back)
	p.deadLetters(s.Dead, s.Type)
	p.plan.Levels = &routes
	return p.finish()
}

func alternateTo(exchange string) amqp.Table { return amqp.Table{"alternate-exchange": exchange} }

// bindLevel binds to for messages whose header of a level has the value.
func (p *planner) bindLevel(exchange string, level int, value string, to Binding) {
	to.Exchange, to.Header, to.Value = exchange, levelKeys[level], value
	p.plan.Bindings = append(p.plan.Bindings, to)
}

// byHeaders reports whether the levels route by headers.
func (l LevelRoutes) byHeaders() bool { return l.Destination == "" }

// levelHeaders returns the headers of a message that passes the levels of the bits of steps. A
// message enters at its highest level. The routing key belongs to the message.
func levelHeaders(steps uint64) amqp.Table {
	headers := make(amqp.Table, bits.OnesCount64(steps))
	var value any = header.LevelFirst
	for ; steps > 0; value = header.LevelNext {
		level := bits.Len64(steps) - 1
		headers[levelKeys[level]] = value
		steps &^= 1 << level
	}
	return headers
}

// levelKeys are the keys of the headers, made once.
var levelKeys = func() (keys [64]string) {
	for level := range keys {
		keys[level] = header.Level + strconv.Itoa(level)
	}
	return keys
}()

// levels checks the routes that a plan makes for delays between its wait steps.
func (v *validation) levels() {
	l := v.plan.Levels
	if l == nil {
		return
	}
	if err := l.check(); err != nil {
		v.find("Plan.Levels: %w", err)
		return
	}
	// The wait steps pass each level alone. These routes also pass all levels below it. Together
	// they take every binding of an exchange that has two bindings for each level.
	for n := range l.Levels {
		route := l.passing(uint64(1)<<(n+1) - 1)
		route.RoutingKey = cmp.Or(route.RoutingKey, v.plan.Queue)
		v.step(route)
	}
}
