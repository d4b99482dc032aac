// Package audit judges the arguments of queues: which messages of a plan do they delete, misdirect
// or delay? Subscribe refuses a queue by it or warns about it, and operate.Verify reports all of it
// as findings.
//
// Its input is plain: names, roles, types, delays and arguments, and the broker's answers over AMQP
// (Runner). It changes nothing on the broker. Package policies adds the management API and the
// policies of the broker (Manager).
package audit

import (
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The types of queue as the broker names them. A Subscriber refuses a stream.
const (
	Classic = "classic"
	Quorum  = "quorum"
	Stream  = "stream"
)

// Role is the purpose of a queue in a plan.
type Role string

// The roles of queues: the consumed queue, a wait queue, the queues that keep dead letters and
// messages whose own queue has vanished, and the line of messages that are handled in order.
const (
	RoleMain     Role = "main"
	RoleWait     Role = "wait"
	RoleDead     Role = "dead"
	RoleStranded Role = "stranded"
	RoleLine     Role = "line"
)

// Queue is a queue of a plan. Its fields are the fields of topology.Queue.
type Queue struct {
	Name      string
	Delay     time.Duration
	Arguments amqp.Table
	Adopt     bool
}

// Exchange is an exchange of a plan.
type Exchange struct {
	Name, Kind string
	Arguments  amqp.Table
}

// DelayedKind is the type of the exchanges of RabbitMQ's delayed-message plugin.
const DelayedKind = "x-delayed-message"

// Plan is the part of a topology.Plan that arguments and policies can spoil.
type Plan struct {
	// Queue is the consumed queue.
	Queue     string
	Queues    []Queue
	Exchanges []Exchange
	// DeadExchange and DeadKey are the route of dead letters.
	DeadExchange, DeadKey string
	// RejectMin and RejectMax say how long the queue itself holds a message that is rejected. Zero:
	// it holds none.
	RejectMin, RejectMax time.Duration
	// Line is the queue of messages that are handled in order. Empty: there is no order.
	Line string
}

// Member is a queue that the plan uses, with its role.
type Member struct {
	Queue
	Role Role
}

// Members returns the consumed queue, the queues of the plan in their order, and the dead-letter
// queue where it is not one of them.
func (p Plan) Members() []Member {
	members := []Member{{Queue{Name: p.Queue}, RoleMain}}
	ownDead := p.DeadExchange == "" && p.DeadKey != "" && p.DeadKey != p.Queue
	for _, q := range p.Queues {
		role := RoleStranded
		switch {
		case q.Delay > 0:
			role = RoleWait
		case p.Line != "" && p.Line == q.Name:
			role = RoleLine
		case p.DeadExchange == "" && p.DeadKey == q.Name:
			role = RoleDead
		}
		ownDead = ownDead && q.Name != p.DeadKey
		members = append(members, Member{q, role})
	}
	if ownDead {
		members = append(members, Member{Queue{Name: p.DeadKey}, RoleDead})
	}
	return members
}

// WaitsInClassic reports whether a wait queue of the plan is a classic queue.
func (p Plan) WaitsInClassic() bool {
	return slices.ContainsFunc(p.Queues, func(q Queue) bool {
		return q.Delay > 0 && q.Arguments["x-queue-type"] == Classic
	})
}

// DelayedExchange returns the exchange in which messages of the plan wait; "" if there is none.
func (p Plan) DelayedExchange() string {
	for _, e := range p.Exchanges {
		if e.Kind == DelayedKind {
			return e.Name
		}
	}
	return ""
}

// DelayText writes a delay as the names of wait queues carry it: 5s, 1m30s, 2m, 6h, 100ms.
func DelayText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
