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

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/middleware/header"
)

// session is a stay on one connection.
type session struct {
	*Member
	ch       *amqp.Channel
	closed   <-chan *amqp.Error
	returned <-chan amqp.Return // a token that no queue took
	news     <-chan amqp.Delivery
	tokens   <-chan amqp.Delivery
	queue    string // of the news
	shown    int    // of Member.queues
	tag      string // of the consumer of tokens
	user     string // in all messages; "" without ControlUsers
	mine     string // the id of the token that this process has published last
	held     []amqp.Delivery
	// The ids of the tokens that this process has published, until it acks them. A token that is
	// spent stops nothing when it arrives.
	published, spent map[string]bool
	renewed          time.Time
	beaten           time.Time     // the last news of a process that probes
	echoed           time.Time     // the last news of this process that came back
	asked            time.Time     // whether a process probes; zero: not asked
	askedAll         time.Time     // because news named no queue
	askPause         time.Duration // from then until the next such question
	second           time.Time     // since then so many questions have answered news that name a queue
	questions        int
	began            time.Time
	sure             bool // that a brake that is not stopped has started

	// A broker gives the token to another process at the earliest one heartbeat after it has heard
	// the last of this one. A process whose news have not come back for echoLimit ends its probes
	// before that.
	beat, echoLimit time.Duration

	probes    context.Context
	endProbes context.CancelCauseFunc // nil while this process does not probe
	probed    chan error
}

func (m *Member) session(ctx context.Context) error {
	dial, cancel := context.WithTimeout(ctx, 2*confirmLimit)
	defer cancel()
	conn, err := m.Link.Conn(dial)
	if err != nil {
		return err
	}
	s := &session{Member: m, probed: make(chan error, 1), published: map[string]bool{}}
	if len(m.ControlUsers) > 0 {
		if s.user = conn.User(); !slices.Contains(m.ControlUsers, s.user) {
			return fmt.Errorf("%w: %q", errNotListed, s.user)
		}
	}
	if err := s.open(ctx, conn); err != nil {
		return err
	}
	return s.run(ctx)
}

// open declares and consumes everything, and asks for the state.
func (s *session) open(ctx context.Context, conn *link.Conn) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*confirmLimit)
	defer cancel()
	opened := make(chan error, 1)
	go func() { opened <- s.prepare(conn) }()
	select {
	case err = <-opened:
	case <-ctx.Done():
		// A consumer that no goroutine reads would keep the token.
		go func() {
			if <-opened == nil {
				_ = s.ch.Close()
			}
		}()
		return fmt.Errorf("declare the parts of the brake: %w", context.Cause(ctx))
	}
	return err
}

func (s *session) prepare(conn *link.Conn) error {
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open channel: %w", err)
	}
	heartbeat := conn.Config.Heartbeat
	if heartbeat <= 0 {
		heartbeat = defaultHeartbeat
	}
	s.beat, s.echoLimit = min(beat, heartbeat/4), heartbeat*8/10
	s.ch, s.closed = ch, ch.NotifyClose(make(chan *amqp.Error, 1))
	if err := s.declare(); err != nil {
		_ = ch.Close()
		return err
	}
	return s.publish(Hello, s.Brake.State(), "")
}

func (s *session) declare() error {
	if err := s.ch.Confirm(false); err != nil {
		return err
	}
	s.returned = s.ch.NotifyReturn(make(chan amqp.Return, 1))
	if !s.Provisioned {
		if err := Declare(s.ch, s.name); err != nil {
			return err
		}
	}
	part := Prefix + s.name
	s.queue = fmt.Sprintf("%s.%016x", part, rand.Uint64())
	_, err := s.ch.QueueDeclare(s.queue, false, true, true, false, nil)
	if err != nil {
		return fmt.Errorf("declare queue %q: %w", s.queue, err)
	}
	if err := s.ch.QueueBind(s.queue, "", part, false, nil); err != nil {
		return fmt.Errorf("bind queue %q to exchange %q: %w", s.queue, part, err)
	}
	if err := s.showQueues(); err != nil {
		return err
	}
	s.news, err = s.ch.Consume(s.queue, "", true, true, false, false, nil)
	if err != nil {
		return fmt.Errorf("consume queue %q: %w", s.queue, err)
	}
	return s.consume()
}

// showQueues shows operators the queues of this process that are not shown yet. It awaits no
// answer, because a broker with an alarm gives none.
func (s *session) showQueues() error {
	s.mu.Lock()
	queues := slices.Clone(s.queues)
	s.mu.Unlock()
	for ; s.shown < len(queues); s.shown++ {
		err := s.ch.QueueBind(s.queue, queues[s.shown], Prefix+s.name, true, nil)
		if err != nil {
			return fmt.Errorf("bind queue %q: %w", s.queue, err)
		}
	}
	return nil
}

// consume joins the end of the line of processes that may have the token.
func (s *session) consume() (err error) {
	if err := s.ch.Qos(mostTokens, 0, false); err != nil {
		return err
	}
	s.tag = fmt.Sprintf("millpond-brake-%016x", rand.Uint64())
	s.tokens, err = s.ch.Consume(Prefix+s.name, s.tag, false, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("consume queue %q: %w", Prefix+s.name, err)
	}
	return nil
}

func (s *session) run(ctx context.Context) error {
	defer s.end()
	answered, asking := time.After(confirmLimit), true
	ticker := time.NewTicker(min(time.Second, s.beat/2))
	defer ticker.Stop()
	// A process that was stopped in an earlier session waits until silence is over: a process that
	// the broker takes for alive may have the token.
	s.began = time.Now()
	s.beaten, s.echoed = s.began, s.began
	var err error
	if s.tripped { // and the broker has perhaps no token
		err = s.stop()
	}
	for err == nil {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err = <-s.closed:
			return cmp.Or(err, link.ErrLost)
		case d, ok := <-s.news:
			if !ok {
				return cmp.Or(s.channelLost(),
					errors.New("the broker has cancelled the consumer of the news"))
			}
			if d.AppId == s.Instance {
				s.echoed = time.Now()
				if asking && d.Type == Hello {
					answered, asking = time.After(answerLimit), false
				}
			}
			err = s.hear(d)
		case <-answered:
			answered = nil
			if err = s.putBack(); err == nil {
				s.known()
			}
		case d, ok := <-s.tokens:
			if !ok {
				if err = s.channelLost(); err == nil {
					err = s.queueGone()
				}
				return err
			}
			err = s.take(d)
		case <-s.Brake.Trips():
			err = s.stop()
		case <-s.more:
			err = s.showQueues()
		case news := <-s.Brake.KeyNews():
			s.tellKey(news)
		case err = <-s.probed:
			err = s.afterProbes(err)
		case <-ticker.C:
			err = s.tick()
		}
	}
	return err
}

// channelLost returns why the channel has ended, or nil if it has not.
func (s *session) channelLost() error {
	if !s.ch.IsClosed() {
		return nil
	}
	if err := <-s.closed; err != nil {
		return err
	}
	return link.ErrLost
}

// end gives everything back. The broker gives the token to the next process.
func (s *session) end() {
	s.stopProbing(link.ErrLost)
	if state := s.Brake.State(); state.Prober == s.Instance { // another process may probe
		state.Prober = ""
		s.Brake.Set(state)
	}
	if !s.ch.IsClosed() {
		_ = s.publish(Bye, header.BrakeState{}, "")
		_ = answered(s.ch.Close)
	}
}

// answered returns the result of a request to the broker, or an error if the answer is late. During
// an alarm the broker does not read requests. The request ends with its connection.
func answered(request func() error) error {
	done := make(chan error, 1)
	go func() { done <- request() }()
	select {
	case err := <-done:
		return err
	case <-time.After(confirmLimit):
		return errors.New("the broker does not answer")
	}
}

// isReady reports whether the state is known in this session.
func (s *session) isReady() bool { return s.Brake.Joined() && s.lost.IsZero() }

// known notes that the state is known: this process is a part of the fleet from now on.
func (s *session) known() {
	if s.isReady() {
		return
	}
	if s.said {
		s.Logger.Info("The instances of the brake reach each other again", nil)
	}
	s.lost, s.said = time.Time{}, false
	s.Brake.Join(s.Instance, s.Tell)
	s.once.Do(func() { close(s.ready) })
}
