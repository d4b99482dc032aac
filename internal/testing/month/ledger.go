package month

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/middleware/header"
)

// rate is the number of messages a second.
const rate = 20

// handled is the end of a message that its handler has handled. Other ends are the reasons of
// dead letters.
const handled = "handled"

// story has the events of one message.
type story struct {
	sent, last time.Time
	confirmed  bool
	calls      map[int]int // by attempt
	ends       []string
	open       int // deliveries that went back while the outcome of a copy was open
}

// struck is an event that has happened.
type struck struct {
	event
	from, to time.Time
}

// ledger has the stories of all messages.
type ledger struct {
	mu      sync.Mutex
	stories map[int]*story
	faults  []struck
	sent    int
	done    int
}

func newLedger() *ledger { return &ledger{stories: map[int]*story{}} }

// of returns the story of a message. mu is held.
func (l *ledger) of(n int) *story {
	s := l.stories[n]
	if s == nil {
		s = &story{sent: time.Now(), calls: map[int]int{}}
		l.stories[n] = s
	}
	s.last = time.Now()
	return s
}

func (l *ledger) called(n, attempt int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(n).calls[attempt]++
}

func (l *ledger) ended(n int, how string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.of(n)
	s.ends = append(s.ends, how)
	if len(s.ends) == 1 && s.confirmed {
		l.done++
	}
}

func (l *ledger) confirmed(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.of(n)
	s.confirmed = true
	l.sent++
	if len(s.ends) > 0 {
		l.done++
	}
}

func (l *ledger) strike(s struck) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = append(l.faults, s)
}

// counts returns how many messages are confirmed, and how many of them have ended.
func (l *ledger) counts() (sent, ended int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent, l.done
}

// produce publishes one message after the other, each with its confirm, until ctx is done.
func (l *ledger) produce(ctx context.Context, url string) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return err
	}
	for n := 0; sleep(ctx, time.Second/rate) == nil; n++ {
		l.mu.Lock()
		l.of(n)
		l.mu.Unlock()
		confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false,
			amqp.Publishing{
				Body: []byte(strconv.Itoa(n)), MessageId: strconv.Itoa(n), DeliveryMode: amqp.Persistent,
			})
		if err != nil {
			return err
		}
		if !confirm.Wait() {
			return fmt.Errorf("message %d was not confirmed", n)
		}
		l.confirmed(n)
	}
	return nil
}

// bury notes each dead letter, until ctx is done.
func (l *ledger) bury(ctx context.Context, url string) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	letters, err := ch.Consume(queue+".dlq", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for {
		select {
		case letter, open := <-letters:
			if !open {
				return fmt.Errorf("the dead letters cannot be consumed any more")
			}
			n, err := strconv.Atoi(string(letter.Body))
			if err != nil {
				return err
			}
			reason, _ := letter.Headers[header.DeadReason].(string)
			l.ended(n, reason)
			if err := letter.Ack(false); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// verdict counts everything and names what no fault explains.
func (l *ledger) verdict(r *Report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.faults {
		if f.name == late.name {
			r.Late++
		}
	}
	for n, s := range l.stories {
		if !s.confirmed && len(s.ends) == 0 {
			continue // it has not entered
		}
		r.Messages++
		copies, again := l.explained(s)
		switch {
		case len(s.ends) == 0:
			r.Lost++
			r.Problems = append(r.Problems, fmt.Sprintf("message %d has not ended: %v", n, s.calls))
			continue
		case s.ends[0] == handled:
			r.Handled++
		default:
			r.Dead++
		}
		if extra := len(s.ends) - 1; extra > 0 {
			r.Twice++
			if extra > copies {
				r.Problems = append(r.Problems, fmt.Sprintf(
					"message %d has ended %d times, and the faults explain %d copies: %v", n, extra+1,
					copies+1, s.ends))
			}
		}
		for _, end := range s.ends {
			if end == string(header.ReasonCrashLoop) {
				r.Problems = append(r.Problems, fmt.Sprintf("message %d: crash loop without a crash", n))
			}
		}
		for attempt, calls := range s.calls {
			r.Again += calls - 1
			if most := (1 + copies) * (1 + again); calls > most {
				r.Problems = append(r.Problems, fmt.Sprintf(
					"message %d: %d calls of attempt %d, and the faults explain %d", n, calls, attempt, most))
			}
			if attempt > len(policy)+1 {
				r.Problems = append(r.Problems, fmt.Sprintf("message %d: attempt %d", n, attempt))
			}
		}
	}
}

// explained returns how many more copies of a message, and calls of an attempt of one copy, the
// faults in its life explain.
func (l *ledger) explained(s *story) (copies, again int) {
	copies, again = s.open, s.open
	for _, f := range l.faults {
		if !f.from.After(s.last) && !f.to.Before(s.sent) {
			copies += f.copies
			again += f.again
		}
	}
	return copies, again
}

// late is the fault of a machine that was too busy to keep the consumer timeout.
var late = event{name: "the consumer timeout has struck", copies: 1, again: 1}

// lines is the logger of the service. It listens for two faults that no event tells of: the broker
// has taken deliveries back, and a delivery goes back at shutdown while its outcome is open.
type lines struct {
	ledger *ledger
	fields watermill.LogFields
}

func (l lines) Error(msg string, err error, f watermill.LogFields) {
	if strings.HasPrefix(msg, "The broker has taken deliveries back") {
		l.ledger.strike(struck{late, time.Now().Add(-consumerTimeout), time.Now().Add(settling)})
	}
	if err != nil && strings.Contains(msg, "goes back to its queue") {
		l.givenBack(err.Error(), f)
	}
}

func (l lines) Info(msg string, f watermill.LogFields) {
	if strings.Contains(msg, "giving it back") {
		l.givenBack(fmt.Sprint(f["error"]), f)
	}
}

func (l lines) Debug(string, watermill.LogFields) {}
func (l lines) Trace(string, watermill.LogFields) {}

func (l lines) With(f watermill.LogFields) watermill.LoggerAdapter {
	return lines{l.ledger, l.fields.Add(f)}
}

// givenBack notes a delivery that goes back. If the outcome of its copy is open, there may be two.
func (l lines) givenBack(why string, f watermill.LogFields) {
	n, err := strconv.Atoi(fmt.Sprint(l.fields.Add(f)["message_id"]))
	if err != nil || !strings.Contains(why, "outcome unknown") {
		return
	}
	l.ledger.mu.Lock()
	defer l.ledger.mu.Unlock()
	l.ledger.of(n).open++
}
