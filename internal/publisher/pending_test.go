package publisher_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// soon is a timeout that a test waits for several times. A broker on a busy machine
// must open a channel in that time.
const soon = 2 * time.Second

// letter is a message that is published until that has succeeded.
type letter struct {
	pending   publisher.Pending
	key, body string
	exchange  string
	user      string // the wrong one is refused with 406
	tries     int    // calls of try
	overdue   int    // of them those that ended with an open outcome
	outcome   error
	succeeded bool
}

// try waits for the outcome that is open, and publishes where none is.
func (l *letter) try(ctx context.Context, p rig) bool {
	l.tries++
	if l.pending.IsOpen() {
		l.outcome = l.pending.Await(ctx)
	} else {
		l.outcome = p.PublishFor(ctx, &l.pending, l.exchange, l.key, &amqp.Publishing{
			Headers: amqp.Table{}, DeliveryMode: amqp.Persistent, UserId: l.user, Body: []byte(l.body),
		})
	}
	if l.pending.IsOpen() {
		l.overdue++
	}
	l.succeeded = l.outcome == nil
	return l.succeeded
}

// deliver tries until the letter is confirmed.
func (l *letter) deliver(t *testing.T, p rig) {
	t.Helper()
	testbroker.WaitFor(t, "letter "+l.body+" to be confirmed", patience, func() bool { return l.succeeded || l.try(t.Context(), p) })
}

// The confirms come many timeouts late: each message is in the queue once, and was
// published once, on one connection.
func TestLateConfirmIsAwaited(t *testing.T) {
	t.Parallel()
	broker := testbroker.URL(t)
	queue := declare(t, broker, nil)
	n, address := startNarrow(t, broker)
	p := open(t, address, soon)
	p.recovers(t, queue)
	begun := len(p.recorder.published())

	release := n.holdConfirms()
	var letters []*letter
	var overdue sync.WaitGroup
	for i := range 8 {
		l := &letter{key: queue, body: fmt.Sprint(i)}
		letters = append(letters, l)
		overdue.Go(func() {
			for l.overdue < 3 && !l.succeeded {
				l.try(t.Context(), p)
			}
		})
	}
	overdue.Wait()
	release()
	for _, l := range letters {
		assert.ErrorIs(t, l.outcome, publisher.ErrUnknown)
		l.deliver(t, p)
	}
	assert.Len(t, p.recorder.published(), begun+len(letters), "published again")
	assert.Equal(t, 1, n.accepted(), "the connection was ended")
	found := bodies(t, broker, queue)
	for _, l := range letters {
		assert.Equal(t, 1, found[l.body], "copies of %s", l.body)
	}
}

// Once the channel of an open outcome has ended, nothing is awaited any more: the
// message is published again, once.
func TestConfirmAfterChannelEndIsPublishedAgain(t *testing.T) {
	t.Parallel()
	atOnce(t, map[string]func(*peer.Publish){
		"channel.close":    func(p *peer.Publish) { p.CloseChannel(406, "PRECONDITION_FAILED") },
		"connection.close": func(p *peer.Publish) { p.CloseConnection(541, "INTERNAL_ERROR") },
		"a reset":          func(p *peer.Publish) { p.Cut(true) },
	}, func(t *testing.T, end func(*peer.Publish)) {
		held := make(chan *peer.Publish, 1)
		var copies atomic.Int64
		s := peer.Start(t, func(p *peer.Publish) {
			switch {
			case string(p.Body) == "letter" && copies.Add(1) == 1:
				held <- p
			default:
				p.Ack(p.Tag, false)
			}
		})
		p := open(t, s.URL(), soon)
		p.recovers(t, "any")
		l := letter{key: "any", body: "letter"}
		for l.overdue < 3 {
			require.False(t, l.try(t.Context(), p))
		}
		require.EqualValues(t, 1, copies.Load())
		end(<-held)
		testbroker.WaitFor(t, "the end of the channel to be noticed", patience, func() bool {
			require.False(t, l.try(t.Context(), p))
			return !l.pending.IsOpen()
		})
		assert.ErrorIs(t, l.outcome, publisher.ErrUnknown)
		l.deliver(t, p)
		assert.EqualValues(t, 2, copies.Load())
	})
}

// A late answer is the outcome, whatever it says.
func TestLateAnswers(t *testing.T) {
	t.Parallel()
	type answer struct {
		answer func(*peer.Publish)
		want   string
	}
	atOnce(t, map[string]answer{
		"ack":              {func(p *peer.Publish) { p.Ack(p.Tag, false) }, success},
		"nack":             {func(p *peer.Publish) { p.Nack(p.Tag, true) }, refused},
		"return, then ack": {func(p *peer.Publish) { p.Return(); p.Ack(p.Tag, false) }, returned},
	}, func(t *testing.T, c answer) {
		held := make(chan *peer.Publish, 1)
		s := peer.Start(t, func(p *peer.Publish) { held <- p })
		p := open(t, s.URL(), soon)
		l := letter{key: "any", body: "letter"}
		for l.overdue < 2 {
			l.try(t.Context(), p)
		}
		c.answer(<-held)
		testbroker.WaitFor(t, "the answer", patience, func() bool {
			l.try(t.Context(), p)
			return !l.pending.IsOpen()
		})
		assert.Equal(t, c.want, outcome(l.outcome))
		assert.Equal(t, 1, s.Published())
	})
}

// A target that never confirms takes neither places nor the channel of others: each of
// theirs is published once and confirmed in time, and the connection lives on.
func TestSlowTargetLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	slow := &slowTarget{channels: map[uint16]bool{}}
	s := peer.Start(t, slow.answer)
	proxy := testbroker.NewProxy(t, s.URL())
	p := open(t, proxy.URL(), soon)
	p.recovers(t, "healthy")

	const all, healthy, each = 500, 8, 40 // more than a channel has places
	letters := make([]*letter, all)
	try := func() (wait func()) {
		var tries sync.WaitGroup
		for _, l := range letters {
			tries.Go(func() {
				for range 2 {
					l.try(t.Context(), p)
				}
			})
		}
		return tries.Wait
	}
	for i := range letters {
		letters[i] = &letter{key: "slow", body: fmt.Sprint("slow ", i)}
	}
	try()()
	slow.known(true)
	wait := try()
	for _, c := range callers(healthy, each, func(_ int, body string) error { return p.say(t.Context(), "healthy", body) }) {
		assert.NoError(t, c.err, c.body)
	}
	wait()
	assert.Equal(t, 1, proxy.Connections(), "the connection was ended, though the broker answers")
	assert.LessOrEqual(t, slow.release(t), 10, "channels")
	for _, l := range letters {
		l.deliver(t, p)
	}
	assert.LessOrEqual(t, slow.copies(), 1, "copies of a message")
}

// slowTarget is a broker with one queue that confirms nothing until it is released.
type slowTarget struct {
	mu       sync.Mutex
	held     []*peer.Publish
	sent     map[string]int
	channels map[uint16]bool // true where a healthy target was published to
	isKnown  bool
	beside   int // publishes to the slow target beside healthy ones since it is known
	released bool
}

func (s *slowTarget) answer(p *peer.Publish) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slow := p.RoutingKey == "slow"
	s.channels[p.Channel] = s.channels[p.Channel] || !slow
	if slow {
		if s.sent == nil {
			s.sent = map[string]int{}
		}
		s.sent[string(p.Body)]++
		if s.isKnown && s.channels[p.Channel] {
			s.beside++
		}
		if !s.released {
			s.held = append(s.held, p)
			return
		}
	}
	p.Ack(p.Tag, false)
}

func (s *slowTarget) known(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isKnown = is
}

// release confirms everything, and returns how many channels were used.
func (s *slowTarget) release(t *testing.T) (channels int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	assert.Zero(t, s.beside, "publishes of the slow target on the channel of the healthy one")
	for _, p := range s.held {
		p.Ack(p.Tag, false)
	}
	s.released, s.isKnown = true, false
	return len(s.channels)
}

// copies is how often the message that was published most often was published.
func (s *slowTarget) copies() (most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.sent {
		most = max(most, n)
	}
	return most
}

// The broker has lost a publish and its confirm (F29). It is given up once its target
// has worked for a whole timeout, and not before; an open outcome of another target on
// the same channel keeps that channel.
func TestLostConfirmIsGivenUpOnceItsTargetWorks(t *testing.T) {
	t.Parallel()
	var letters, beside atomic.Int64
	var works atomic.Bool
	held := make(chan *peer.Publish, 1)
	s := peer.Start(t, func(p *peer.Publish) {
		switch string(p.Body) {
		case "letter":
			if letters.Add(1) == 1 {
				return
			}
		case "beside":
			beside.Add(1)
			held <- p
			return
		case "other":
			if !works.Load() {
				p.Nack(p.Tag, false)
				return
			}
		}
		p.Ack(p.Tag, false)
	})
	p := open(t, s.URL(), soon)
	p.recovers(t, "any")
	l, slow := letter{key: "any", body: "letter"}, letter{key: "slow", body: "beside"}
	both := func() {
		var tries sync.WaitGroup
		tries.Go(func() { l.try(t.Context(), p) })
		tries.Go(func() { slow.try(t.Context(), p) })
		tries.Wait()
	}
	for l.overdue < 2 {
		both()
		require.True(t, l.pending.IsOpen() && slow.pending.IsOpen())
		assert.ErrorIs(t, p.say(t.Context(), "any", "other"), publisher.ErrRefused)
	}
	works.Store(true)
	require.NoError(t, p.say(t.Context(), "any", "other"))
	for range 2 {
		both()
		require.EqualValues(t, 1, letters.Load(), "given up, though the channel is in use")
	}
	last := <-held
	last.Ack(last.Tag, false)
	slow.deliver(t, p)
	l.deliver(t, p)
	assert.EqualValues(t, 2, letters.Load())
	assert.EqualValues(t, 1, beside.Load())
}

// A broker that is gone without a word is noticed by those that wait for an outcome,
// too.
func TestSilenceIsNoticedWhileAnOutcomeIsOpen(t *testing.T) {
	t.Parallel()
	broker := testbroker.URL(t)
	queue := declare(t, broker, nil)
	n, address := startNarrow(t, broker)
	proxy := testbroker.NewProxy(t, address)
	p := open(t, proxy.URL(), soon)
	p.recovers(t, queue)
	release := n.holdConfirms()
	l := letter{key: queue, body: "letter"}
	for l.overdue < 2 {
		l.try(t.Context(), p)
	}
	require.Equal(t, 1, proxy.Connections())
	proxy.Blackhole(true)
	testbroker.WaitFor(t, "the end of the connection", patience, func() bool {
		l.try(t.Context(), p)
		return proxy.Connections() > 1
	})
	proxy.Blackhole(false)
	release()
	l.deliver(t, p)
}

// A broker that has blocked publishing answers nothing, and says so: the connection
// lives on, and the outcome stays open.
func TestBlockedConnectionIsNotEnded(t *testing.T) {
	t.Parallel()
	held := make(chan *peer.Publish, 1)
	s := peer.Start(t, func(p *peer.Publish) {
		p.Blocked(true)
		held <- p
	})
	proxy := testbroker.NewProxy(t, s.URL())
	p := open(t, proxy.URL(), soon)
	l := letter{key: "any", body: "letter"}
	for l.overdue < 3 {
		require.False(t, l.try(t.Context(), p))
	}
	first := <-held
	first.Blocked(false)
	first.Ack(first.Tag, false)
	l.deliver(t, p)
	assert.Equal(t, 1, proxy.Connections())
	assert.Equal(t, 1, s.Published())
}

// What is released keeps neither a place nor a channel.
func TestReleasedOutcomesKeepNoChannel(t *testing.T) {
	t.Parallel()
	s := peer.Start(t, func(*peer.Publish) {})
	proxy := testbroker.NewProxy(t, s.URL())
	p := open(t, proxy.URL(), soon)
	var all sync.WaitGroup
	letters := make([]letter, 5)
	for i := range letters {
		all.Go(func() {
			l := &letters[i]
			l.key, l.body = fmt.Sprint("queue ", i), "letter"
			for l.overdue == 0 {
				l.try(t.Context(), p)
			}
		})
	}
	all.Wait()
	assert.Positive(t, p.Retired())
	for i := range letters {
		o := &letters[i].pending
		o.Release()
		o.Release()
		assert.False(t, o.IsOpen())
		assert.Error(t, o.Await(t.Context()))
	}
	assert.Zero(t, p.Retired(), "channels that are open for what was released")
	assert.Equal(t, 1, proxy.Connections())
}

// Close ends those that wait for an outcome.
func TestCloseEndsOpenOutcomes(t *testing.T) {
	t.Parallel()
	s := peer.Start(t, func(*peer.Publish) {})
	p := open(t, s.URL(), soon)
	l := letter{key: "any", body: "letter"}
	for l.overdue == 0 {
		l.try(t.Context(), p)
	}
	within(t, goodbye, "Close", p.Close)
	within(t, 0, "Await", func() {
		assert.ErrorIs(t, l.pending.Await(t.Context()), publisher.ErrUnknown)
	})
	assert.False(t, l.pending.IsOpen())
}
