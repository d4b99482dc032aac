package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/middleware/header"
)

// stop tells the other processes that this one has stopped the brake.
func (s *session) stop() error {
	state := s.Brake.State()
	if !state.Stopped || len(s.held) > 0 {
		s.tripped = false
		return nil
	}
	s.tripped = true
	if err := s.publishToken(state); err != nil {
		return err
	}
	s.tripped = false
	s.hasToken(time.Now())
	if err := s.publish(Stopped, state, ""); err != nil {
		return err
	}
	s.count(state.Rate)
	return nil
}

// take takes a token. This process probes from now on. The token is replaced at once, so that it
// names this process, and the broker counts from the beginning how often it is delivered.
func (s *session) take(d amqp.Delivery) error {
	if s.spent[d.MessageId] { // published before the brake started
		delete(s.spent, d.MessageId)
		return d.Ack(false)
	}
	if d.MessageId == "" && d.Type != "" { // news: a forged question named this queue for the answer
		return d.Ack(false)
	}
	if !s.believes(d) {
		return errors.Join(s.refuse(d), d.Ack(false))
	}
	s.held = append(s.held, d)
	before := s.Brake.State()
	probing := s.endProbes != nil
	if probing && d.AppId == s.Instance {
		return s.ackOthers()
	}
	state, ok := Read(s.name, d)
	if !ok {
		state = header.BrakeState{Name: s.name, Since: d.Timestamp, Cause: "a token that cannot be read"}
	}
	if before.Stopped {
		state = Merge(before, state)
	} else {
		s.count(s.Brake.Rate())
	}
	byHand := state.Manual && !(before.Manual && before.Until.Equal(state.Until))
	if probing && !byHand {
		return s.ackOthers()
	}
	if byHand {
		s.stopProbing(errors.New("stopped by hand"))
	}
	state.Stopped, state.Prober = true, s.Instance
	s.merge(&state)
	s.Brake.Set(state)
	s.known()
	s.probe()
	return s.renew()
}

// renew replaces the token.
func (s *session) renew() error {
	state := s.Brake.State()
	if err := s.publishToken(state); err != nil {
		return err
	}
	s.renewed = time.Now()
	return s.tellStopped()
}

// ackOthers acks all tokens but the last token of this process, if that has come back.
func (s *session) ackOthers() error {
	if !slices.ContainsFunc(s.held, s.isMine) {
		return nil
	}
	s.renewed = time.Now()
	var kept []amqp.Delivery
	for _, d := range s.held {
		if s.isMine(d) {
			kept = append(kept, d)
		} else if err := s.ack(d); err != nil {
			return err
		}
	}
	s.held = kept
	return nil
}

func (s *session) isMine(d amqp.Delivery) bool {
	return d.MessageId == s.mine && d.AppId == s.Instance
}

func (s *session) ack(d amqp.Delivery) error {
	delete(s.published, d.MessageId)
	return d.Ack(false)
}

// tellStopped tells the others that this process has the token.
func (s *session) tellStopped() error {
	s.hasToken(time.Now())
	state := s.Brake.State()
	s.merge(&state)
	return s.publish(Stopped, state, "")
}

// start starts the brake for all processes.
func (s *session) start(by, cause string) error {
	s.stopProbing(errors.New(cause))
	state := s.Brake.State()
	s.merge(&state)
	state.Stopped, state.Manual, state.Until, state.Prober = false, false, time.Time{}, ""
	state.Since, state.By, state.Cause = time.Now().UTC(), by, cause
	if err := s.publish(Started, state, ""); err != nil {
		return err
	}
	for _, d := range s.held {
		if err := s.ack(d); err != nil {
			return err
		}
	}
	s.held, s.mine, s.sure = nil, "", true
	s.published, s.spent = map[string]bool{}, s.published
	s.Brake.Set(state)
	return nil
}

// probe begins to probe, unless this process does already.
func (s *session) probe() {
	if s.endProbes != nil {
		return
	}
	s.probes, s.endProbes = context.WithCancelCause(context.Background())
	ctx := s.probes
	go func() {
		state := s.Brake.State()
		for state.Manual && time.Now().Before(state.Until) {
			select {
			case <-time.After(min(time.Until(state.Until), time.Second)):
			case <-ctx.Done():
				s.probed <- context.Cause(ctx)
				return
			}
			state = s.Brake.State()
		}
		s.probed <- s.Brake.Probe(ctx)
	}()
}

func (s *session) stopProbing(why error) {
	if s.endProbes == nil {
		return
	}
	s.endProbes(why)
	if err := <-s.probed; err != nil {
		s.Logger.Debug("Probing ends: "+err.Error(), nil)
	}
	s.endProbes = nil
}

// afterProbes takes the end of the probes: the brake starts, or another process must probe.
func (s *session) afterProbes(err error) error {
	s.endProbes(nil)
	s.endProbes = nil
	if err == nil {
		return s.start(s.Instance, "probes have succeeded")
	}
	s.Logger.Debug("Another instance may probe: "+err.Error(), nil)
	return s.stepBack()
}

// stepBack gives the token to the next process in the line, and joins the line at its end.
func (s *session) stepBack() error {
	if err := answered(func() error { return s.ch.Cancel(s.tag, false) }); err != nil {
		return err
	}
	for d := range s.tokens {
		s.held = append(s.held, d)
	}
	for _, d := range s.held {
		if err := d.Nack(false, true); err != nil {
			return err
		}
	}
	s.held, s.mine = nil, ""
	clear(s.published)
	state := s.Brake.State()
	state.Prober = ""
	s.Brake.Set(state)
	err := answered(s.consume)
	if gone := new(amqp.Error); errors.As(err, &gone) && gone.Code == amqp.NotFound {
		return s.queueGone()
	}
	return err
}

// queueGone notes that the queue of the token was deleted: no process has its token now.
func (s *session) queueGone() error {
	state := s.Brake.State()
	s.orphaned = state.Stopped && (state.Prober == "" || state.Prober == s.Instance)
	return errors.New("the queue of the token was deleted")
}

// putBack publishes the token anew whose queue was deleted, unless the other processes have told
// that the brake has started, or a process has a token, which may be this one.
func (s *session) putBack() error {
	state := s.Brake.State()
	if s.orphaned && state.Stopped && state.Prober == "" {
		if err := s.publishToken(state); err != nil {
			return err
		}
	}
	s.orphaned = false
	return nil
}

// tick renews the token, tells the state or asks for it, if that is due.
func (s *session) tick() error {
	switch now := time.Now(); {
	case len(s.held) > 0 && now.Sub(s.echoed) >= s.echoLimit:
		return errNoEcho
	case len(s.held) > 0:
		if now.Sub(s.renewed) >= renewal {
			return s.renew()
		}
		if now.Sub(s.beaten) >= s.beat {
			return s.tellStopped()
		}
	case !s.Brake.Stopped():
	case s.asked.IsZero() && now.Sub(s.beaten) >= silence:
		s.asked = now
		return s.publish(Hello, s.Brake.State(), "")
	case !s.asked.IsZero() && now.Sub(s.asked) >= beat:
		s.asked = time.Time{}
		state := s.Brake.State()
		state.Stopped, state.Manual, state.Until, state.Prober = false, false, time.Time{}, ""
		state.Since, state.By, state.Cause = now.UTC(), s.Instance, errNoToken.Error()
		s.merge(&state)
		s.Brake.Set(state)
	}
	return nil
}

// publishToken publishes a token and waits for the confirm.
func (s *session) publishToken(state header.BrakeState) error {
	id := fmt.Sprintf("%016x", rand.Uint64())
	msg, err := Token(id, s.Instance, state)
	if err != nil {
		return err
	}
	msg.UserId = s.user
	confirm, err := s.ch.PublishWithDeferredConfirm("", Prefix+s.name, true, false, msg)
	if err != nil {
		return err
	}
	s.mine, s.published[id] = id, true
	ctx, cancel := context.WithTimeout(context.Background(), confirmLimit)
	defer cancel()
	acked, err := confirm.WaitContext(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	case !acked: // with its connection, perhaps: that is no answer of the broker
		return cmp.Or(s.channelLost(), errUnconfirmed)
	}
	select {
	case <-s.returned: // the broker returns a message before it confirms it
		return s.queueGone()
	default:
		return nil
	}
}
