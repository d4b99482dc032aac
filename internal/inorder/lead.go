package inorder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/order"
)

// This file has the lead of a queue that is handled in order: tokens, the lease, and the processes
// that end while they lead.

// publishToken publishes a token on the channel that consumes the line: the broker has then seen
// everything that was given back there before.
func (l *lane) publishToken(epoch uint64) (name string, err error) {
	name = watermill.NewShortUUID()
	l.mine[name] = time.Now()
	note := order.Note{
		Kind: order.Token, Epoch: epoch, Name: name, Ahead: l.ahead, Crashes: l.crashes,
	}
	l.mu.Lock()
	note.Trying, note.Together = l.line.Trying()
	l.mu.Unlock()
	if epoch == 0 {
		note.Trying.Epoch = l.q.led.Load() // this process has survived that it led
	}
	if epoch > 0 {
		l.q.led.Store(epoch)
	}
	msg := amqp.Publishing{
		DeliveryMode: amqp.Persistent, Timestamp: time.Now(),
		Headers: amqp.Table{keys.Line: note.String()},
	}
	if len(l.q.ControlUsers) > 0 {
		msg.UserId = l.lines.Conn().User()
	}
	err = l.lines.AMQP().PublishWithContext(context.Background(), "", l.q.Line, false, false, msg)
	if err != nil {
		err = fmt.Errorf("publish to queue %q: %w", l.q.Line, err)
	}
	return name, err
}

// checkUser refuses a connection whose tokens no process would believe.
func (q *Queue) checkUser(conn *link.Conn) error {
	users, user := q.ControlUsers, conn.User()
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
func (q *Queue) checkToken(ch *amqp.Channel, closed <-chan *amqp.Error) error {
	if len(q.ControlUsers) == 0 {
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
	return fmt.Errorf("publish to queue %q: %w", q.Line, err)
}

// token takes a token. It reports whether this process may go on to lead.
func (l *lane) token(raw amqp.Delivery, note order.Note) bool {
	published, mine := l.back(note.Name)
	l.ahead = max(l.ahead, note.Ahead)
	before, note := l.weigh(&raw, note, mine)
	if note.Epoch == 0 && note.Trying.Epoch > 0 {
		l.survived(note.Trying.Epoch)
	}
	switch own := l.epoch.Load(); {
	case own > 0 && note.Epoch >= own && !mine:
		return false // another process has led meanwhile
	case l.barrier == "" && !mine || note.Epoch == 0 && own > 0: // of a process that has just begun
		_ = l.ack(raw.DeliveryTag)
		return true
	}
	l.tokens = append(l.tokens, raw)
	if !mine && note.Epoch >= l.last.Epoch && note.Epoch > 0 {
		l.last = note
		l.recount()
	}
	switch {
	case !mine || l.barrier != "" && note.Name != l.barrier:
		return true
	case l.barrier != "" && l.isLow(note, before): // another process has led before
		return l.raiseBarrier(max(before, note.Epoch))
	}
	for _, old := range l.tokens[:len(l.tokens)-1] {
		_ = l.ack(old.DeliveryTag)
	}
	l.tokens = []amqp.Delivery{raw}
	l.renewLease(published.Add(lease))
	return l.barrier == "" || l.lead(note.Epoch)
}

// isLow reports whether this process did not know all that is known now when it published its
// barrier.
func (l *lane) isLow(note order.Note, before uint64) bool {
	return note.Epoch <= before || note.Ahead < l.ahead || note.Crashes < l.crashes
}

// survived notes that the process of an epoch has not crashed.
func (l *lane) survived(epoch uint64) {
	if len(l.alive) == order.MaxCrashes { // forged
		l.alive = map[uint64]bool{l.last.Epoch: l.alive[l.last.Epoch]}
	}
	l.alive[epoch] = true
	l.recount()
}

// back reports whether a token is of this process, and when that published it. The leader before
// has acked the tokens that were published earlier and are not back.
func (l *lane) back(name string) (published time.Time, mine bool) {
	if published, mine = l.mine[name]; mine {
		delete(l.mine, name)
		maps.DeleteFunc(l.mine, func(_ string, at time.Time) bool { return at.Before(published) })
	}
	return published, mine
}

// weigh notes the epoch of a token and returns its note: an empty one if the token is not believed.
// The epoch counts also if the user is not believed. before is the highest epoch that was seen
// before.
func (l *lane) weigh(
	raw *amqp.Delivery, note order.Note, mine bool,
) (before uint64, believed order.Note) {
	l.mu.Lock()
	before = l.line.Epoch()
	if raw.Redelivered && !mine { // the process before had it in hand, in front of all that came later
		l.line.Led(note.Epoch)
	}
	counts := l.line.Seen(note.Epoch)
	l.mu.Unlock()
	if mine || counts && l.believes(raw) {
		return before, note
	}
	l.logDisbelief(raw, note)
	return before, order.Note{}
}

// lead begins to lead: the token has come back, so everything in the line is known.
func (l *lane) lead(epoch uint64) bool {
	l.barrier = ""
	l.epoch.Store(epoch)
	l.mu.Lock()
	l.line.Know(epoch, l.whole)
	l.mu.Unlock()
	for _, f := range l.later {
		f()
	}
	l.later = nil
	switch {
	case l.since.IsZero():
		l.since = time.Now().UTC()
		l.beCareful(l.crashes >= mostCrashes)
	case l.came && !l.whole:
		return l.raiseBarrier(epoch)
	}
	return true
}

// believes reports whether a token or a release counts.
func (l *lane) believes(raw *amqp.Delivery) bool {
	users := l.q.ControlUsers
	return len(users) == 0 || slices.Contains(users, raw.UserId)
}

var errNotBelieved = errors.New("its user is not in topology.WithControlUsers, or its epoch is " +
	"far above each in which a process has led")

// logDisbelief logs once a minute that a token or a release does not count.
func (l *lane) logDisbelief(raw *amqp.Delivery, note order.Note) {
	if time.Since(l.q.disbelief) < time.Minute {
		return
	}
	l.q.disbelief = time.Now()
	l.logger.Error("A note in the line is not believed", errNotBelieved, watermill.LogFields{
		"note": string(note.Kind), "epoch": note.Epoch, "user_id": raw.UserId,
	})
}

// raiseBarrier publishes a token before whose return nothing begins.
func (l *lane) raiseBarrier(epoch uint64) bool {
	name, err := l.publishToken(epoch + 1)
	l.barrier, l.whole = name, l.came
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
func (l *lane) recount() {
	switch {
	case l.last.Epoch == 0:
		return
	case l.alive[l.last.Epoch]:
		l.crashes = max(0, l.last.Crashes)
		l.last.Trying, l.last.Together = order.ID{}, nil
	default:
		l.crashes = min(l.last.Crashes+1, order.MaxCrashes)
	}
	if l.epoch.Load() > 0 {
		l.beCareful(l.crashes >= mostCrashes)
	}
}

// beCareful begins or ends to try the messages that may have been in hand when a process ended. A
// message that ends the process is found so: the token names the messages that are
// handled together, and the next process tries half of them.
func (l *lane) beCareful(careful bool) {
	if l.careful == careful {
		return
	}
	l.careful = careful
	suspects := slices.Concat(l.last.Together, []order.ID{l.last.Trying})
	l.mu.Lock()
	l.line.BeCareful(careful, min(order.MaxTried, l.cfg.Consume.Concurrency), suspects...)
	l.mu.Unlock()
	if careful {
		l.logger.Info("Processes or connections have ended repeatedly while they handled the queue: its "+
			"messages are tried a few at a time for a while", watermill.LogFields{"ended": l.crashes})
	}
}

// try reports whether a token says that the message is tried. It also names the messages behind it.
func (l *lane) try(next *step) bool {
	if next.tried == "" {
		name, err := l.publishToken(l.epoch.Load())
		if err != nil {
			l.lines.Enough()
			return false
		}
		next.tried = name
		for _, behind := range l.behind {
			behind.tried = name
		}
	}
	_, away := l.mine[next.tried]
	return !away
}

// maxPrefetch is AMQP's limit. Without a prefetch a quorum queue delivers 2000 messages (F50).
const maxPrefetch = 65535
