package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/middleware/header"
)

// This file has the lead of a queue that is handled in order: tokens, the lease, and the processes
// that end while they lead.

// publishToken publishes a token on the channel that consumes the line: the broker has then seen
// everything that was given back there before.
func (s *Subscription) publishToken(o *inOrder, epoch uint64) (name string, err error) {
	name = watermill.NewShortUUID()
	o.mine[name] = time.Now()
	note := order.Note{
		Kind: order.Token, Epoch: epoch, Name: name, Ahead: o.ahead, Crashes: o.crashes,
	}
	o.mu.Lock()
	note.Trying, note.Together = o.line.Trying()
	o.mu.Unlock()
	if epoch == 0 {
		note.Trying.Epoch = s.led.Load() // this process has survived that it led
	}
	if epoch > 0 {
		s.led.Store(epoch)
	}
	msg := amqp.Publishing{
		DeliveryMode: amqp.Persistent, Timestamp: time.Now(),
		Headers: amqp.Table{header.Line: note.String()},
	}
	if len(s.cfg.Order.ControlUsers) > 0 {
		msg.UserId = o.lines.conn.User()
	}
	err = o.lines.ch.PublishWithContext(context.Background(), "", s.cfg.Order.Line, false, false, msg)
	if err != nil {
		err = fmt.Errorf("publish to queue %q: %w", s.cfg.Order.Line, err)
	}
	return name, err
}

// checkUser refuses a connection whose tokens no process would believe.
func (s *Subscription) checkUser(conn *link.Conn) error {
	users, user := s.cfg.Order.ControlUsers, conn.User()
	switch {
	case len(users) == 0 || slices.Contains(users, user):
		return nil
	case user == "":
		return errors.New("topology.WithControlUsers does not work with this connection: " +
			"the broker takes its user from a certificate or another mechanism")
	}
	return fmt.Errorf("topology.WithControlUsers names %q and not the user %q of this connection: "+
		"add it", users, user)
}

// tokenCheck is how long Subscribe waits for the broker to read a token. During an alarm it reads
// nothing.
const tokenCheck = 5 * time.Second

// checkToken waits until the broker has read a token. It refuses the user of a message whom it
// knows by another name (F15), and closes the channel.
func (s *Subscription) checkToken(ch *amqp.Channel, closed <-chan *amqp.Error) error {
	if len(s.cfg.Order.ControlUsers) == 0 {
		return nil
	}
	read := make(chan error, 1)
	go func() { read <- ch.Qos(maxPrefetch, 0, false) }()
	var err error
	select {
	case err = <-read:
	case <-time.After(tokenCheck):
	}
	if err == nil {
		return nil
	}
	if reason, ok := <-closed; ok && reason.Code == amqp.PreconditionFailed {
		return fmt.Errorf("topology.WithControlUsers does not work with this user: the broker refuses "+
			"the name: %w", reason)
	}
	return fmt.Errorf("publish to queue %q: %w", s.cfg.Order.Line, err)
}

// token takes a token. It reports whether this process may go on to lead.
func (s *Subscription) token(o *inOrder, raw amqp.Delivery, note order.Note) bool {
	published, mine := o.back(note.Name)
	o.ahead = max(o.ahead, note.Ahead)
	before, believed := s.weigh(o, &raw, note, mine)
	if !believed {
		note = order.Note{}
	}
	if note.Epoch == 0 && note.Trying.Epoch > 0 {
		if len(o.alive) == order.MaxCrashes { // forged
			o.alive = map[uint64]bool{o.last.Epoch: o.alive[o.last.Epoch]}
		}
		o.alive[note.Trying.Epoch] = true
		s.recount(o)
	}
	switch own := o.epoch.Load(); {
	case own > 0 && note.Epoch >= own && !mine:
		return false // another process has led meanwhile
	case o.gate == "" && !mine || note.Epoch == 0 && own > 0: // of a process that has just begun
		_ = o.lines.ack(raw.DeliveryTag)
		return true
	}
	o.tokens = append(o.tokens, raw)
	if !mine && note.Epoch >= o.last.Epoch && note.Epoch > 0 {
		o.last = note
		s.recount(o)
	}
	switch {
	case !mine || o.gate != "" && note.Name != o.gate:
		return true
	case o.gate != "" && (note.Epoch <= before || note.Ahead < o.ahead || note.Crashes < o.crashes):
		return s.shut(o, max(before, note.Epoch)) // another process has led before
	}
	for _, old := range o.tokens[:len(o.tokens)-1] {
		_ = o.lines.ack(old.DeliveryTag)
	}
	o.tokens = []amqp.Delivery{raw}
	o.renewLease(published.Add(lease))
	return o.gate == "" || s.lead(o, note.Epoch)
}

// back reports whether a token is of this process, and when that published it. The leader before
// has acked the tokens that were published earlier and are not back.
func (o *inOrder) back(name string) (published time.Time, mine bool) {
	if published, mine = o.mine[name]; mine {
		delete(o.mine, name)
		maps.DeleteFunc(o.mine, func(_ string, at time.Time) bool { return at.Before(published) })
	}
	return published, mine
}

// weigh notes the epoch of a token and reports whether the token is believed. The epoch counts also
// if the user is not believed. before is the highest epoch that was seen before.
func (s *Subscription) weigh(
	o *inOrder, raw *amqp.Delivery, note order.Note, mine bool,
) (before uint64, believed bool) {
	o.mu.Lock()
	before = o.line.Epoch()
	if raw.Redelivered && !mine { // the process before had it in hand, in front of all that came later
		o.line.Led(note.Epoch)
	}
	counts := o.line.Seen(note.Epoch)
	o.mu.Unlock()
	believed = mine || counts && s.believes(raw)
	if !believed {
		s.logDisbelief(raw, note)
	}
	return before, believed
}

// lead begins to lead: the token has come back, so everything in the line is known.
func (s *Subscription) lead(o *inOrder, epoch uint64) bool {
	o.gate = ""
	o.epoch.Store(epoch)
	o.mu.Lock()
	o.line.Know(epoch, o.whole)
	o.mu.Unlock()
	for _, f := range o.later {
		f()
	}
	o.later = nil
	switch {
	case o.since.IsZero():
		o.since = time.Now().UTC()
		s.beCareful(o, o.crashes >= mostCrashes)
	case o.came && !o.whole:
		return s.shut(o, epoch)
	}
	return true
}

// believes reports whether a token or a release counts.
func (s *Subscription) believes(raw *amqp.Delivery) bool {
	users := s.cfg.Order.ControlUsers
	return len(users) == 0 || slices.Contains(users, raw.UserId)
}

var errNotBelieved = errors.New("its user is not in topology.WithControlUsers, or its epoch is " +
	"far above each in which a process has led")

// logDisbelief logs once a minute that a token or a release does not count.
func (s *Subscription) logDisbelief(raw *amqp.Delivery, note order.Note) {
	if time.Since(s.disbelief) < time.Minute {
		return
	}
	s.disbelief = time.Now()
	s.logger.Error("A note in the line is not believed", errNotBelieved, watermill.LogFields{
		"note": string(note.Kind), "epoch": note.Epoch, "user_id": raw.UserId,
	})
}

// shut publishes a token before whose return nothing begins.
func (s *Subscription) shut(o *inOrder, epoch uint64) bool {
	name, err := s.publishToken(o, epoch+1)
	o.gate, o.whole = name, o.came
	return err == nil
}

const (
	// mostCrashes is how many processes in a row may end while they lead, before messages are tried.
	mostCrashes = 3
	// calm is how long a process must lead until it counts as not ended.
	calm = time.Minute
)

// recount counts the processes that have ended while they led. A process that has lost its
// connection alone tells so when it is back.
func (s *Subscription) recount(o *inOrder) {
	switch {
	case o.last.Epoch == 0:
		return
	case o.alive[o.last.Epoch]:
		o.crashes = max(0, o.last.Crashes)
		o.last.Trying, o.last.Together = order.ID{}, nil
	default:
		o.crashes = min(o.last.Crashes+1, order.MaxCrashes)
	}
	if o.epoch.Load() > 0 {
		s.beCareful(o, o.crashes >= mostCrashes)
	}
}

// beCareful begins or ends to try the messages that may have been in hand when a process ended. A
// message that ends the process is found so: the token names the messages that are
// handled together, and the next process tries half of them.
func (s *Subscription) beCareful(o *inOrder, careful bool) {
	if o.careful == careful {
		return
	}
	o.careful = careful
	suspects := slices.Concat(o.last.Together, []order.ID{o.last.Trying})
	o.mu.Lock()
	o.line.BeCareful(careful, min(order.MaxTried, s.places.all), suspects...)
	o.mu.Unlock()
	if careful {
		s.logger.Info("Processes or connections have ended repeatedly while they handled the queue: its "+
			"messages are tried a few at a time for a while", watermill.LogFields{"ended": o.crashes})
	}
}

// try reports whether a token says that the message is tried. It also names the messages behind it.
func (s *Subscription) try(o *inOrder, next *step) bool {
	if next.tried == "" {
		name, err := s.publishToken(o, o.epoch.Load())
		if err != nil {
			o.lines.enoughNow()
			return false
		}
		next.tried = name
		for _, behind := range o.behind {
			behind.tried = name
		}
	}
	_, away := o.mine[next.tried]
	return !away
}

// maxPrefetch is AMQP's limit. Without a prefetch a quorum queue delivers 2000 messages (F50).
const maxPrefetch = 65535
