package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/brake"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/middleware/header"
)

const (
	// answerLimit is how long a new member waits for the state of the brake, after its question has
	// come back to itself.
	answerLimit = 300 * time.Millisecond
	// beat is the time between two Stopped of the process that probes.
	beat = 5 * time.Second
	// renewal is the age at which a token is replaced, so that the broker's consumer timeout, of
	// a minute at least (F16), never ends.
	renewal = 20 * time.Second
	// silence is how long a stopped member may hear of no process that probes. The broker notices
	// within the time of its heartbeats, 30 s, that a process has died.
	silence = 90 * time.Second
	// confirmLimit bounds the confirm of a token.
	confirmLimit = 5 * time.Second
	// rejoinLimit is how long a stopped member waits for the broker before it starts.
	rejoinLimit = 60 * time.Second
	// echoLimit is how long the news of the process that probes may take to come back to itself. It
	// is less than the broker needs to give the token to another process, so a process that cannot
	// reach the broker ends its probes before another process begins.
	echoLimit = 12 * time.Second
	// mostTokens is how many tokens the broker may send ahead. They are merged into one.
	mostTokens = 64
)

var (
	errNoToken     = errors.New("no instance has the token of the brake")
	errUnconfirmed = errors.New("the broker has not confirmed the token of the brake")
	errNoEcho      = errors.New("the news of this instance do not come back from the broker")
)

// Config describes a Member. All fields need a value, except Provisioned.
type Config struct {
	Brake       *brake.Brake
	Link        *link.Link
	Instance    string // its name, different from all others
	Logger      watermill.LoggerAdapter
	Provisioned bool // declare neither exchange nor token queue
	// Tell is told of each change of the state, and whether this instance probes.
	Tell func(state header.BrakeState, probing bool)
}

// Member is the part of a fleet that one process has, for one brake.
type Member struct {
	Config
	name  string
	ready chan struct{} // closed when the state is known, or cannot be
	once  sync.Once
	said  string // the last trouble that was logged

	// The goroutine of Run alone has these.
	rates  map[string]float64 // of the members that are known
	others float64            // the rates of members that have left
	lost   time.Time          // since then the broker cannot be reached
}

// NewMember returns a Member that has not joined. The brake must have a name.
func NewMember(cfg Config) *Member {
	m := &Member{
		Config: cfg, name: cfg.Brake.State().Name, ready: make(chan struct{}),
		rates: map[string]float64{},
	}
	m.Logger = m.Logger.With(watermill.LogFields{"brake": m.name})
	return m
}

// Ready is closed when the state of the brake is known for the first time, or cannot be known.
func (m *Member) Ready() <-chan struct{} { return m.ready }

// Run takes part until ctx is done. While the broker cannot be reached, it tries again.
func (m *Member) Run(ctx context.Context) {
	defer m.Brake.Leave()
	const first, most = 250 * time.Millisecond, 10 * time.Second
	for pause := first; ; pause = min(2*pause, most) {
		began := time.Now()
		err := m.session(ctx)
		if ctx.Err() != nil {
			return
		}
		m.trouble(err)
		if time.Since(began) > most {
			pause = first
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// trouble decides what a lost session means. A lost connection may come back soon.
func (m *Member) trouble(err error) {
	if m.lost.IsZero() {
		m.lost = time.Now()
	}
	if isRefusal(err) || errors.Is(err, errUnconfirmed) || time.Since(m.lost) > rejoinLimit {
		m.Brake.Leave()
	}
	m.once.Do(func() { close(m.ready) })
	if text := err.Error(); m.said != text {
		m.said = text
		m.Logger.Error("The instances of the brake cannot reach each other through the broker: until "+
			"they can, the budget of this process works as without Brake", err, nil)
	}
}

// isRefusal reports whether the broker has refused a part of the brake.
func isRefusal(err error) bool {
	refused := new(amqp.Error)
	if !errors.As(err, &refused) {
		return errors.Is(err, ErrName)
	}
	switch refused.Code {
	case amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed:
		return true
	}
	return false
}

// session is a stay on one connection.
type session struct {
	*Member
	ch      *amqp.Channel
	closed  <-chan *amqp.Error
	news    <-chan amqp.Delivery
	tokens  <-chan amqp.Delivery
	queue   string // of the news
	tag     string // of the consumer of tokens
	mine    string // the id of the token that this process has published last
	held    []amqp.Delivery
	renewed time.Time
	beaten  time.Time // the last news of a process that probes
	echoed  time.Time // the last news of this process that came back
	asked   time.Time // whether a process probes; zero: not asked
	heard   bool      // of a process that probes, in this session

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
	s := &session{Member: m, probed: make(chan error, 1)}
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
		return fmt.Errorf("declare the parts of the brake: %w", context.Cause(ctx))
	}
	return err
}

func (s *session) prepare(conn *link.Conn) error {
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open channel: %w", err)
	}
	s.ch, s.closed = ch, ch.NotifyClose(make(chan *amqp.Error, 1))
	if err := s.declare(); err != nil {
		_ = ch.Close()
		return err
	}
	return s.publish(Hello, header.BrakeState{}, "")
}

func (s *session) declare() error {
	if err := s.ch.Confirm(false); err != nil {
		return err
	}
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
	s.news, err = s.ch.Consume(s.queue, "", true, true, false, false, nil)
	if err != nil {
		return fmt.Errorf("consume queue %q: %w", s.queue, err)
	}
	return s.consume()
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
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	s.beaten, s.echoed = time.Now(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-s.closed:
			if err == nil {
				return link.ErrLost
			}
			return err
		case d, ok := <-s.news:
			if !ok {
				return errors.New("the broker has cancelled the consumer of the news")
			}
			if d.AppId == s.Instance {
				s.echoed = time.Now()
			}
			if asking && d.Type == Hello && d.AppId == s.Instance {
				answered, asking = time.After(answerLimit), false
			}
			if err := s.hear(d); err != nil {
				return err
			}
		case <-answered:
			answered = nil
			s.known()
		case d, ok := <-s.tokens:
			if !ok {
				return errors.New("the broker has cancelled the consumer of the token")
			}
			if err := s.take(d); err != nil {
				return err
			}
		case <-s.Brake.Trips():
			if err := s.stop(); err != nil {
				return err
			}
		case news := <-s.Brake.KeyNews():
			s.tellKey(news)
		case err := <-s.probed:
			if err := s.afterProbes(err); err != nil {
				return err
			}
		case <-ticker.C:
			if err := s.tick(); err != nil {
				return err
			}
		}
	}
}

// end gives everything back. The broker gives the token to the next process.
func (s *session) end() {
	s.stopProbing(link.ErrLost)
	if !s.ch.IsClosed() {
		_ = s.publish(Bye, header.BrakeState{}, "")
		_ = s.ch.Close()
	}
}

// isReady reports whether the state is known in this session.
func (s *session) isReady() bool { return s.Brake.Joined() && s.lost.IsZero() }

// known notes that the state is known: this process is a part of the fleet from now on.
func (s *session) known() {
	if s.isReady() {
		return
	}
	if !s.lost.IsZero() && s.said != "" {
		s.Logger.Info("The instances of the brake reach each other again", nil)
	}
	s.lost, s.said = time.Time{}, ""
	s.Brake.Join(s.Instance, s.Tell)
	if s.Brake.Stopped() && !s.heard {
		s.asked = time.Now() // it was stopped in an earlier session
	}
	s.once.Do(func() { close(s.ready) })
}

// hear takes news.
func (s *session) hear(d amqp.Delivery) error {
	if d.Type == keyNews {
		if d.AppId != s.Instance {
			var news brake.KeyNews
			if json.Unmarshal(d.Body, &news) == nil {
				s.Brake.HearKey(news)
			}
		}
		return nil
	}
	state, ok := Read(s.name, d)
	if !ok || d.AppId == s.Instance {
		return nil
	}
	switch d.Type {
	case Hello:
		if len(s.held) > 0 {
			return s.answer(d.ReplyTo)
		}
	case Stopped:
		s.beaten, s.asked, s.heard = time.Now(), time.Time{}, true
		if len(s.held) > 0 && state.Prober != "" {
			return nil // the other one has lost the token and does not know it yet
		}
		if !s.Brake.Stopped() {
			s.count(s.Brake.Rate())
		}
		s.merge(&state)
		s.Brake.Set(state)
		s.known()
	case Rate:
		s.rates[d.AppId] = state.Rate
	case Started:
		if len(s.held) == 0 {
			s.merge(&state)
			s.Brake.Set(state)
		}
	case Start:
		if len(s.held) > 0 {
			return s.start(state.By, "started by hand")
		}
	case Bye:
		s.others += s.rates[d.AppId]
		delete(s.rates, d.AppId)
	}
	return nil
}

// count begins to count the members and their rates, and tells the others the rate of this one.
func (s *session) count(rate float64) {
	clear(s.rates)
	s.rates[s.Instance], s.others = rate, 0
	_ = s.publish(Rate, header.BrakeState{Rate: rate}, "")
}

// merge completes a state with the rate of all members. An instance that joined late knows less.
func (s *session) merge(state *header.BrakeState) {
	sum := s.others
	for _, rate := range s.rates {
		sum += rate
	}
	state.Rate, state.Members = max(state.Rate, sum), max(state.Members, len(s.rates))
}

// stop tells the other processes that this one has stopped the brake.
func (s *session) stop() error {
	state := s.Brake.State()
	if !state.Stopped || len(s.held) > 0 {
		return nil
	}
	if err := s.publishToken(state); err != nil {
		return err
	}
	s.beaten = time.Now()
	if err := s.publish(Stopped, state, ""); err != nil {
		return err
	}
	s.count(state.Rate)
	return nil
}

// take takes a token. This process probes from now on. The token is replaced at once, so that it
// names this process, and the broker counts from the beginning how often it is delivered.
func (s *session) take(d amqp.Delivery) error {
	s.held, s.heard = append(s.held, d), true
	if d.MessageId == s.mine && d.AppId == s.Instance && s.endProbes != nil {
		s.renewed = time.Now()
		return s.ackOthers()
	}
	state, ok := Read(s.name, d)
	if !ok {
		state = header.BrakeState{Name: s.name, Since: d.Timestamp, Cause: "a token that cannot be read"}
	}
	before := s.Brake.State()
	if before.Stopped {
		state = Merge(before, state)
	} else {
		s.count(s.Brake.Rate())
	}
	if state.Manual && !before.Manual {
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

// ackOthers acks all tokens but the last one that this process has published.
func (s *session) ackOthers() error {
	var kept []amqp.Delivery
	for _, d := range s.held {
		if d.MessageId == s.mine && d.AppId == s.Instance {
			kept = append(kept, d)
		} else if err := d.Ack(false); err != nil {
			return err
		}
	}
	s.held = kept
	return nil
}

// tellStopped tells the others that this process has the token.
func (s *session) tellStopped() error {
	s.beaten = time.Now()
	state := s.Brake.State()
	s.merge(&state)
	return s.publish(Stopped, state, "")
}

func (s *session) answer(queue string) error {
	if queue == "" {
		return nil
	}
	state := s.Brake.State()
	s.merge(&state)
	return s.publish(Stopped, state, queue)
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
		if err := d.Ack(false); err != nil {
			return err
		}
	}
	s.held, s.mine = nil, ""
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
	<-s.probed
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
	if err := s.ch.Cancel(s.tag, false); err != nil {
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
	state := s.Brake.State()
	state.Prober = ""
	s.Brake.Set(state)
	return s.consume()
}

// tick does what has its time.
func (s *session) tick() error {
	switch now := time.Now(); {
	case len(s.held) > 0 && now.Sub(s.echoed) >= echoLimit:
		return errNoEcho
	case len(s.held) > 0:
		if now.Sub(s.renewed) >= renewal {
			return s.renew()
		}
		if now.Sub(s.beaten) >= beat {
			return s.tellStopped()
		}
	case !s.Brake.Stopped():
	case s.asked.IsZero() && now.Sub(s.beaten) >= silence:
		s.asked = now
		return s.publish(Hello, header.BrakeState{}, "")
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

// keyNews is the type of the news of one key. Its body is a brake.KeyNews.
const keyNews = "key"

func (s *session) tellKey(news brake.KeyNews) {
	body, err := json.Marshal(news)
	if err == nil {
		_ = s.ch.Publish(Prefix+s.name, "", false, false, amqp.Publishing{
			ContentType: contentType, Type: keyNews, AppId: s.Instance, Body: body,
		})
	}
}

// publish tells news to all processes, or to the one with the queue. Its loss harms nothing: the
// process that probes repeats the state.
func (s *session) publish(kind string, state header.BrakeState, queue string) error {
	state.Name = s.name
	msg, err := News(kind, s.Instance, state)
	if err != nil {
		return err
	}
	if kind == Hello {
		msg.ReplyTo = s.queue
	}
	exchange := Prefix + s.name
	if queue != "" {
		exchange = ""
	}
	return s.ch.Publish(exchange, queue, false, false, msg)
}

// publishToken publishes a token and waits for the confirm.
func (s *session) publishToken(state header.BrakeState) error {
	id := fmt.Sprintf("%016x", rand.Uint64())
	msg, err := Token(id, s.Instance, state)
	if err != nil {
		return err
	}
	confirm, err := s.ch.PublishWithDeferredConfirm("", Prefix+s.name, true, false, msg)
	if err != nil {
		return err
	}
	s.mine = id
	ctx, cancel := context.WithTimeout(context.Background(), confirmLimit)
	defer cancel()
	acked, err := confirm.WaitContext(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	case !acked:
		return errUnconfirmed
	}
	return nil
}
