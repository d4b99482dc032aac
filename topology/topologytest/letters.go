package topologytest

import (
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/topology"
)

// read keeps the messages of the suite that arrive at targets of dead letters. It acks them. Other
// messages go back when the connection ends.
func (s *suite) read(tr *trial, targets ...topology.Route) {
	var queues []string
	for _, target := range targets {
		queue := target.RoutingKey
		if target.Exchange != "" { // an exchange of the user: listen beside the queues there
			queue = s.queue("letters." + target.RoutingKey)
			tr.Must(s.onChannel(func(ch *amqp.Channel) error {
				if _, err := ch.QueueDeclare(queue, false, true, true, false, nil); err != nil {
					return err
				}
				return ch.QueueBind(queue, target.RoutingKey, target.Exchange, false, nil)
			}), "bind a queue to the exchange %q of the dead letters, which must exist", target.Exchange)
		}
		if !slices.Contains(queues, queue) {
			queues = append(queues, queue)
		}
	}
	for _, queue := range queues {
		ch, err := s.conn.Channel()
		tr.Must(err, "open a channel")
		letters, err := ch.Consume(queue, "", false, false, false, false, nil)
		tr.Must(err, "consume queue %q, where the plan keeps messages", queue)
		go func() {
			for d := range letters {
				if !strings.HasPrefix(idOf(d), s.prefix) {
					continue
				}
				s.mu.Lock()
				s.letters[idOf(d)] = append(s.letters[idOf(d)], d)
				s.mu.Unlock()
				_ = d.Ack(false) // the channel ends with the suite
			}
		}()
	}
}

// lettersOf returns the dead or stranded copies of a message.
func (s *suite) lettersOf(id string) []amqp.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.letters[id]
}

// awaitLetter waits for the dead or stranded copy of a message.
func (s *suite) awaitLetter(tr *trial, id, where string) amqp.Delivery {
	if !tr.Await(0, func() bool { return len(s.lettersOf(id)) > 0 }) {
		tr.Fatalf("the message %s is not in the %s after %v: it is lost. %s", id, where, tr.Patience,
			s.main.log)
	}
	return s.lettersOf(id)[0]
}
