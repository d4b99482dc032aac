// Package inorder handles the messages of each key of a queue in their order; see package order. It
// is a room at the seam "which" of package consumer: a lane reads two queues in a goroutine of its
// own and offers the messages that may begin.
//
// All processes consume the line, which has a single active consumer. Each publishes a token to
// it, so that the broker tells one of them that it is active: that process takes the lead. It
// reads the line up to a new token. Then it consumes the main queue, which has a single active
// consumer, too. When its first message comes, the broker has taken back the messages of the leader
// before, in their order. The process reads the line up to another new token, and knows all
// copies whose messages are not in the main queue. Now it begins.
//
// Nothing is given back singly, because a quorum queue would deliver it out of its order (F50).
// The channels end, and everything comes again.
package inorder

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/order"
)

// Config says how the messages of a queue are handled in order.
type Config struct {
	// KeyBy returns the key of a message, "" for a message that has no order. It is the user's:
	// it may panic.
	KeyBy func(*message.Message) string
	// Line is the queue beside the main queue.
	Line string
	// Block keeps a key waiting behind a dead letter until a person releases it.
	Block bool
	// Limits bound the line.
	Limits order.Limits
	// Instance names this process for people.
	Instance string
	// ControlUsers are the users whose tokens and releases count, by the UserId that the broker has
	// checked. Tokens of this process name its user then. Empty: every user's count.
	ControlUsers []string
}

// Queue keeps the order of one queue. It is the consumer.Lanes of one Subscription.
type Queue struct {
	Config
	led       atomic.Uint64 // the last epoch in which this process has led, without an end in peace
	asking    chan struct{} // has a value while a key is asked for
	inKeyBy   atomic.Bool   // the user's function is asked, and no longer the marshaler
	keyless   sync.Once     // logged that a message has no key, because the user's function panics
	disbelief time.Time     // logged that a note is not believed; of the goroutine that reads the line
}

// New returns a Queue for one Subscription.
func New(cfg Config) *Queue { return &Queue{Config: cfg, asking: make(chan struct{}, 1)} }

// lane keeps the order of the messages that one connection brings. Its fields belong to the
// goroutine of Run, but for those that mu guards.
type lane struct {
	q      *Queue
	s      *consumer.Subscription
	cfg    *consumer.Config
	logger watermill.LoggerAdapter
	lines  *consumer.Channel      // of the line
	ctx    context.Context        // done when the channel of the line is closed
	ack    func(tag uint64) error // of a delivery of the line

	mu      sync.Mutex
	line    *order.Line[consumer.Arrival]
	over    bool            // a delivery comes again: nothing begins
	leased  time.Time       // the process leads until then
	leading context.Context // done when the lease is over
	lapse   *time.Timer     // ends lead

	changed chan struct{} // has a value when a step has ended
	begun   chan bool     // has a value when the step that was offered has begun, or may not begin
	idle    atomic.Bool   // no message may begin, and none waits for its key
	halted  atomic.Bool   // nothing begins before the next Run
	epoch   atomic.Uint64 // of the last token that came back

	main    *consumer.Channel // of the main queue; nil before the line is known
	opening bool
	opened  chan newMain     // the outcome of opening it
	asked   consumer.Arrival // of the main queue, whose key is not known
	key     <-chan string    // of asked; nil for none
	late    *time.Timer      // the key of asked takes long
	came    bool             // a message of the main queue has come
	next    *step            // may begin
	offered bool             // to the Subscription, which has not answered
	behind  []*step          // may begin after it
	careful bool             // processes have ended: messages are tried, named in a token first
	later   []func()         // answers and releases, which need to know the line

	mine    map[string]time.Time // tokens that have not come back, with the time of their publish
	barrier string               // the token before whose return nothing begins; "" for none
	whole   bool                 // a message of the main queue had come before the gate
	tokens  []amqp.Delivery      // that are in hand
	ahead   int                  // the highest prefetch of the main queue that any process has had
	since   time.Time            // the process leads
	paused  bool                 // logged that the line is full
	reading time.Time            // Run has begun to read the tokens

	last    order.Note      // the token of the process that has led before
	alive   map[uint64]bool // epochs whose processes have only lost their connections
	crashes int             // processes in a row that have ended while they led
}

type newMain struct {
	channel *consumer.Channel
	err     error
}

// Open implements consumer.Lanes: it consumes the line, and tells the active process that it is
// active.
func (q *Queue) Open(
	s *consumer.Subscription, conn *link.Conn, limits consumer.Limits, use consumer.Use,
) (*consumer.Channel, error) {
	if err := q.checkUser(conn); err != nil {
		return nil, err
	}
	c, err := s.Open(conn, limits, use, q.Line, maxPrefetch, q.arguments(s, false))
	if err != nil {
		return nil, err
	}
	l := newLane(q, s, c)
	c.Join(l)
	closed := c.AMQP().NotifyClose(make(chan *amqp.Error, 1))
	if _, err = l.publishToken(0); err == nil {
		err = q.checkToken(c.AMQP(), closed)
	}
	if err != nil {
		_ = c.AMQP().Close()
		return nil, err
	}
	return c, nil
}

func newLane(q *Queue, s *consumer.Subscription, lines *consumer.Channel) *lane {
	return &lane{
		q: q, s: s, cfg: s.Config(), logger: s.Logger(), lines: lines, ack: lines.Ack,
		ctx:  lines.Context(),
		line: order.New[consumer.Arrival](q.Limits), mine: map[string]time.Time{},
		alive: map[uint64]bool{}, changed: make(chan struct{}, 1), begun: make(chan bool, 1),
		opened: make(chan newMain, 1), ahead: s.Config().Consume.Prefetch,
	}
}

// arguments are the user's and no consumer timeout: RabbitMQ 4.3 would give the deliveries that are
// over it to another consumer, and keep the others for this one (F52). Earlier versions ignore the
// argument. A classic queue of RabbitMQ 4.3 refuses it.
func (q *Queue) arguments(s *consumer.Subscription, classic bool) amqp.Table {
	args := s.Config().Consume.Arguments
	if classic {
		return args
	}
	args = maps.Clone(args)
	if args == nil {
		args = amqp.Table{}
	}
	args["x-consumer-timeout"] = noTimeout
	return args
}

// noTimeout is ten years in milliseconds. A queue of RabbitMQ 4.3 breaks at much more.
const noTimeout = int64(315360000000)

// Run implements consumer.Lane.
func (l *lane) Run() (offers <-chan consumer.Arrival, ended <-chan struct{}, halt func()) {
	to, stop, end := make(chan consumer.Arrival), make(chan struct{}), make(chan struct{})
	l.halted.Store(false)
	go func() {
		defer close(end)
		defer l.halted.Store(true)
		l.run(to, stop)
	}()
	return to, end, func() {
		close(stop)
		<-end
	}
}

// run reads both queues and offers what may begin, until stop is closed or the consumer has ended.
func (l *lane) run(offers chan<- consumer.Arrival, stop <-chan struct{}) {
	l.reading = time.Now()
	defer l.keepLead()
	timer := time.NewTimer(0)
	defer timer.Stop()
	beat := time.NewTicker(leaseBeat)
	defer beat.Stop()
	l.late = time.NewTimer(lateKey)
	defer l.late.Stop()
	renew := time.NewTicker(min(max(l.lines.Hold()/2, time.Second), mostRenewal))
	defer renew.Stop()
	l.offered = false
	select {
	case begun := <-l.begun: // when run ended before
		l.answered(begun)
	default:
	}
	for goOn := l.lines.Use() != consumer.ToGetOne || l.leads() || l.beat(); goOn; {
		l.openMain()
		to, offer := l.offer(offers, timer)
		fromMain, mainGone := l.mainChannels()
		select {
		case raw, ok := <-l.lines.Incoming():
			goOn = l.orEnds(ok && l.fromLine(raw))
		case opened := <-l.opened:
			goOn = l.mainOpened(opened)
		case raw, ok := <-fromMain:
			goOn = l.orEnds(ok && l.fromMain(raw))
		case <-mainGone:
			goOn = l.orEnds(false)
		case key := <-l.key:
			goOn = l.orEnds(l.keyed(key))
		case <-l.late.C:
			l.logLateKey()
		case to <- offer:
			l.offered = true
		case begun := <-l.begun:
			l.answered(begun)
		case <-l.changed:
		case <-timer.C:
		case <-beat.C:
			goOn = l.beat()
		case <-renew.C:
			goOn = l.renew()
		case <-stop:
			return
		}
	}
}

// offer returns the step to offer; a nil channel if none may begin now. It sets the timer to the
// time at which the next one is due.
func (l *lane) offer(
	offers chan<- consumer.Arrival, timer *time.Timer,
) (to chan<- consumer.Arrival, offer consumer.Arrival) {
	if l.next == nil {
		l.next = l.take(timer)
	}
	next := l.next
	l.idle.Store(next == nil && l.key == nil)
	switch {
	case next == nil || l.offered || !l.leads():
		return nil, offer
	case l.careful && next.mustBeNamed() && !l.try(next):
		return nil, offer
	}
	offer = next.Item
	offer.Step, offer.Alone = next, !next.Follows && l.lines.Use() != consumer.ToConsume
	return offers, offer
}

// answered takes the answer to an offer.
func (l *lane) answered(begun bool) {
	if l.offered = false; begun {
		l.next = nil
	}
}

// Begin implements consumer.Step. The lease, or the lane, may have ended since the step was
// offered.
func (t *step) Begin() bool {
	may := t.lane.leads() && !t.lane.Over() && !t.lane.halted.Load()
	t.lane.begun <- may
	return may
}

// Idle implements consumer.Lane.
func (l *lane) Idle() bool { return l.idle.Load() }

// mainChannels returns the deliveries of the main queue, or the end of its channel while the key of
// one of them is not known.
func (l *lane) mainChannels() (deliveries <-chan amqp.Delivery, gone <-chan struct{}) {
	switch {
	case l.main == nil:
		return nil, nil
	case l.key == nil:
		return l.main.Incoming(), nil
	}
	return nil, l.main.Context().Done()
}

func (l *lane) mainOpened(opened newMain) (goOn bool) {
	l.opening = false
	if opened.err != nil {
		l.logger.Error("Cannot consume the queue, trying again", opened.err, nil)
		return false
	}
	l.main = opened.channel
	l.lines.Beside(l.main)
	return true
}

// orEnds notes that the consumer has ended, unless it can go on.
func (l *lane) orEnds(goOn bool) bool {
	if !goOn {
		l.lines.Ended()
	}
	return goOn
}

// step is a message that may begin. It is its consumer.Step.
type step struct {
	*order.Step[consumer.Arrival]
	lane   *lane
	tried  string // the token that says that the message is tried
	blamed bool   // the last process has ended while it tried the message alone
	blocks bool   // the mark of its dead letter is in the line
}

// mustBeNamed reports whether a token must name the message before it begins, if messages are
// tried.
func (t *step) mustBeNamed() bool { return !t.Follows && t.From != (order.ID{}) && !t.blamed }

// take returns a step that may begin, and sets the timer if the next message is not due. While
// messages are tried it takes all that may begin, so that one token names them.
func (l *lane) take(timer *time.Timer) *step {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return nil
	}
	now := clock.Now()
	for len(l.behind) == 0 || l.careful {
		found, ok := l.line.Next(now)
		if !ok {
			break
		}
		next := &step{Step: found, lane: l}
		if l.careful && found.From == l.last.Trying && found.From != (order.ID{}) {
			next.blamed, l.last.Trying = true, order.ID{}
		}
		if l.behind = append(l.behind, next); next.Follows {
			break // it needs room in the line, which its copy takes at its end
		}
	}
	if len(l.behind) > 0 {
		next := l.behind[0]
		l.behind = l.behind[1:]
		return next
	}
	if at, ok := l.line.Wake(); ok {
		timer.Reset(max(at.Sub(now), time.Millisecond))
	}
	return nil
}

// openMain consumes the main queue, once the line is known and has room. Every leader
// takes as many messages ahead as any leader before, because otherwise the broker would mix up the
// messages that it has taken back (F50).
func (l *lane) openMain() {
	if l.since.IsZero() || l.barrier != "" || l.main != nil || l.opening {
		return
	}
	if len(l.q.asking) > 0 { // an earlier consumer's: each end of a channel counts against the limit
		return
	}
	l.mu.Lock()
	spare := l.line.HasSpare()
	l.mu.Unlock()
	if !spare {
		if !l.paused {
			l.paused = true
			l.logger.Info("The line is full: the queue is not consumed until a tenth of it is free", nil)
		}
		return
	}
	c, ahead := l.lines, l.ahead
	l.opening = true
	go func() {
		ctx, cancel := context.WithTimeout(l.s.Stop(), consumer.PrepareTimeout)
		defer cancel()
		main, err := consumer.Within(ctx, l.cfg.Queue, func() (*consumer.Channel, error) {
			args := l.q.arguments(l.s, c.Classic)
			return l.s.Open(c.Conn(), c.Limits, c.Use(), l.cfg.Queue, ahead, args)
		})
		l.opened <- newMain{main, err}
	}()
	l.logger.Info("Consuming in order", watermill.LogFields{"epoch": l.epoch.Load()})
}

// Ended implements consumer.Step.
func (t *step) Ended(end consumer.Outcome) {
	l := t.lane
	copied := end.Copied && (!end.Died || t.blocks && !t.isMarked())
	l.mu.Lock()
	if !end.Acked {
		l.over = true
		l.lines.Enough() // its message comes again
	}
	l.line.Ended(t.Step, copied)
	marks := l.unmark(t, end)
	l.mu.Unlock()
	for _, mark := range marks {
		_ = l.ack(mark.Raw.DeliveryTag)
	}
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// GiveBack implements consumer.Lane.
func (l *lane) GiveBack() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.lines.Enough()
}

// Over implements consumer.Lane.
func (l *lane) Over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// mostPatience is how long handlers may go on when their process has lost the lead. Until then no
// process gets the messages behind them. Afterwards their messages come again.
const mostPatience = 10 * time.Second

// Release implements consumer.Lane: the channels are closed when the messages in progress are
// settled. A cancel would let another process begin before.
func (l *lane) Release() {
	main := l.main
	if l.opening {
		main = (<-l.opened).channel
	}
	both := []*consumer.Channel{l.lines}
	if main != nil {
		both = []*consumer.Channel{main, l.lines}
	}
	for _, c := range both { // nothing reads the deliveries that come now
		c.Enough()
	}
	patience := consumer.MaxHold
	if l.lines.HasEnded() || l.Over() {
		patience = mostPatience
	}
	l.lines.Settle(patience)
	for _, c := range both {
		c.Flush()
	}
	if l.barrier == "" && l.epoch.Load() > 0 && !l.Over() {
		l.crashes = order.Clean
		l.q.led.CompareAndSwap(l.epoch.Load(), 0)
		_, _ = l.publishToken(l.epoch.Load())
	}
	for _, c := range both {
		c.Close()
	}
}
