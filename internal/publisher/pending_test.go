package publisher_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/peer"
)

// letter is a message that is published until it is confirmed.
type letter struct {
	rig       rig
	pending   publisher.Pending
	key, body string
	exchange  string
	user      string // the wrong one is refused with 406
	tries     int    // calls of try
	overdue   int    // of them, the calls that ended with an open outcome
	outcome   error
	succeeded bool
}

func (r rig) letter(body string) *letter { return &letter{rig: r, key: r.queue, body: body} }

// try waits for the open outcome, or publishes if none is open.
func (l *letter) try() bool {
	l.tries++
	ctx := l.rig.t.Context()
	if l.pending.IsOpen() {
		l.outcome = l.pending.Await(ctx)
	} else {
		l.outcome = l.rig.PublishFor(ctx, &l.pending, publisher.Target{
			Exchange: l.exchange, RoutingKey: l.key,
		}, &amqp.Publishing{
			Headers: amqp.Table{}, DeliveryMode: amqp.Persistent, UserId: l.user, Body: []byte(l.body),
		})
	}
	if l.pending.IsOpen() {
		l.overdue++
	}
	l.succeeded = l.outcome == nil
	return l.succeeded
}

// stayOpen tries until the outcome was open n times.
func (l *letter) stayOpen(n int) {
	for l.overdue < n && !l.succeeded {
		l.try()
	}
}

// settle tries until the outcome is not open any more.
func (l *letter) settle() {
	l.rig.t.Helper()
	await(l.rig.t, "the outcome of "+l.body, func() bool {
		l.try()
		return !l.pending.IsOpen()
	})
}

// deliver tries until the letter is confirmed.
func (l *letter) deliver() {
	l.rig.t.Helper()
	await(l.rig.t, "letter "+l.body+" to be confirmed", func() bool {
		return l.succeeded || l.try()
	})
}

// together runs the same for all letters at once.
func together(letters []*letter, f func(*letter)) {
	var wait sync.WaitGroup
	for _, l := range letters {
		wait.Go(func() { f(l) })
	}
	wait.Wait()
}

// Once the channel of an open outcome has ended, no confirm can come any more. The message is
// published again, once.
func TestConfirmAfterChannelEndIsPublishedAgain(t *testing.T) {
	t.Parallel()
	each(t, map[string]func(*peer.Publish){
		"channel.close":    func(p *peer.Publish) { p.CloseChannel(406, "PRECONDITION_FAILED") },
		"connection.close": func(p *peer.Publish) { p.CloseConnection(541, "INTERNAL_ERROR") },
		"a reset":          func(p *peer.Publish) { p.Cut(true) },
	}, func(t *testing.T, end func(*peer.Publish)) {
		held := make(chan *peer.Publish, 1)
		var copies atomic.Int64
		s := peer.Start(t, func(p *peer.Publish) {
			if string(p.Body) == "letter" && copies.Add(1) == 1 {
				held <- p
				return
			}
			ack(p)
		})
		p := connect(t, s.URL(), "any", soon)
		p.recovers()
		l := p.letter("letter")
		l.stayOpen(2)
		require.EqualValues(t, 1, copies.Load())
		end(<-held)
		l.settle()
		assert.ErrorIs(t, l.outcome, publisher.ErrUnknown)
		l.deliver()
		assert.EqualValues(t, 2, copies.Load())
	})
}

// A late answer is the outcome, as an answer in time would be.
func TestLateAnswers(t *testing.T) {
	t.Parallel()
	type answer struct {
		answer func(*peer.Publish)
		want   string
	}
	each(t, map[string]answer{
		"ack":              {ack, success},
		"nack":             {func(p *peer.Publish) { p.Nack(p.Tag, true) }, refused},
		"return, then ack": {func(p *peer.Publish) { p.Return(); ack(p) }, returned},
	}, func(t *testing.T, c answer) {
		held := make(chan *peer.Publish, 1)
		p, s := onPeer(t, soon, func(p *peer.Publish) { held <- p })
		l := p.letter("letter")
		l.stayOpen(2)
		c.answer(<-held)
		l.settle()
		assert.Equal(t, c.want, outcome(l.outcome))
		assert.Equal(t, 1, s.Published())
	})
}

// Given a target that never confirms, the messages to other targets keep their channel and their
// places: each is published once and confirmed in time. The connection lives on.
func TestSlowTargetLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := &slowTarget{channels: map[uint16]bool{}, sent: map[string]int{}}
		p, _ := onPeer(t, soon, slow.answer)
		p.recovers()

		const all, healthy, each = 500, 8, 40 // more than a channel has places
		letters := make([]*letter, all)
		for i := range letters {
			letters[i] = p.letter(fmt.Sprint("slow ", i))
			letters[i].key = "slow"
		}
		try := func(l *letter) { l.try() }
		together(letters, try)
		slow.known(true)
		var again sync.WaitGroup
		again.Go(func() { together(letters, try) })
		for _, c := range callers(healthy, each, func(_ int, body string) error { return p.say(body) }) {
			assert.NoError(t, c.err, c.body)
		}
		again.Wait()
		assert.Equal(t, 1, p.proxy.Connections(), "the connection was ended, though the broker answers")
		channels, beside := slow.release()
		assert.LessOrEqual(t, channels, 10, "channels")
		assert.Zero(t, beside, "publishes of the slow target on the channel of the healthy one")
		for _, l := range letters {
			l.deliver()
		}
		for body, n := range slow.sent {
			assert.Equal(t, 1, n, "copies of %s", body)
		}
	})
}

// slowTarget is a broker with one queue that confirms nothing until it is released.
type slowTarget struct {
	mu       sync.Mutex
	held     []*peer.Publish
	sent     map[string]int
	channels map[uint16]bool // true if a healthy target was published to
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
		s.sent[string(p.Body)]++
		if s.isKnown && s.channels[p.Channel] {
			s.beside++
		}
		if !s.released {
			s.held = append(s.held, p)
			return
		}
	}
	ack(p)
}

func (s *slowTarget) known(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isKnown = is
}

// release confirms everything.
func (s *slowTarget) release() (channels, beside int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.held {
		ack(p)
	}
	s.released, s.isKnown = true, false
	return len(s.channels), s.beside
}

// The broker has lost confirms (F29). The publish is given up when its target has worked on another
// channel for a whole timeout, and not before. A publish to another target, whose outcome is open
// on the same channel, changes nothing and stays.
func TestLostConfirmIsGivenUpOnceItsTargetWorks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := &swallower{lose: map[string]int{"letter": 1, "beside": 1}}
		p, _ := onPeer(t, soon, broker.answer)
		p.recovers()
		l, slow := p.letter("letter"), p.letter("beside")
		slow.key = "slow"
		together([]*letter{l, slow}, func(l *letter) { l.try() })
		require.NoError(t, p.say("other"))
		began := time.Now()
		together([]*letter{l, slow}, func(l *letter) { l.try() })
		l.deliver()
		assert.Equal(t, soon, time.Since(began))
		assert.Equal(t, 2, broker.copies("letter"))
		assert.True(t, slow.pending.IsOpen())
		assert.Equal(t, 1, broker.copies("beside"))
	})
}

// A confirm on the channel of a lost one says nothing about it.
func TestALateConfirmOnTheSameChannelGivesNothingUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := &swallower{lose: map[string]int{"second": 1}}
		p, _ := onPeer(t, soon, func(p *peer.Publish) {
			if string(p.Body) == "first" {
				time.AfterFunc(soon+soon/2, func() { ack(p) })
				return
			}
			broker.answer(p)
		})
		p.recovers()
		first, second := p.letter("first"), p.letter("second")
		both := []*letter{first, second}
		together(both, func(l *letter) { l.try() })
		together(both, func(l *letter) { l.try() })
		require.NoError(t, first.outcome)
		second.stayOpen(4)
		assert.Equal(t, 1, broker.copies("second"))
	})
}

// A target without success for three timeouts gets one publish again, however many wait. When that
// one is confirmed, the others are given up, too. No target keeps another waiting: each of these
// is lonely, and there are more than channels of their own.
func TestAScoutFindsOutWhetherATargetWorks(t *testing.T) {
	t.Parallel()
	each(t, map[string]int{"one target": 1, "lonely targets": 100}, func(t *testing.T, targets int) {
		const letters = 100
		broker := &swallower{lose: map[string]int{}}
		p, _ := onPeer(t, soon, broker.answer)
		p.recovers()
		var all []*letter
		for i := range letters {
			l := p.letter(fmt.Sprint("letter ", i))
			l.key = fmt.Sprint("queue ", i%targets)
			broker.lose[l.body] = 1
			all = append(all, l)
		}
		began := time.Now()
		again := map[time.Duration]int{}
		var mu sync.Mutex
		together(all, func(l *letter) {
			for !l.try() {
			}
			mu.Lock()
			again[time.Since(began)]++
			mu.Unlock()
			assert.Equal(t, 2, broker.copies(l.body), l.body)
		})
		want := map[time.Duration]int{3 * soon: targets}
		if targets < letters {
			want[4*soon] = letters - targets
		}
		assert.Equal(t, want, again)
	})
}

// While a target stays silent, the pauses between its scouts double.
func TestScoutsOfADeadTargetAreRare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := &swallower{lose: map[string]int{"letter": 1000}}
		p, _ := onPeer(t, soon, broker.answer)
		p.recovers()
		l := p.letter("letter")
		for began := time.Now(); time.Since(began) < 100*soon; {
			l.try()
		}
		assert.Equal(t, 6, broker.copies("letter"), "after 0, 3, 9, 21, 45 and 93 timeouts")
		assert.Equal(t, 1, p.proxy.Connections())
	})
}

// swallower is a broker that loses the first confirms of some bodies.
type swallower struct {
	mu   sync.Mutex
	lose map[string]int
	sent map[string]int
}

func (s *swallower) answer(p *peer.Publish) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent == nil {
		s.sent = map[string]int{}
	}
	body := string(p.Body)
	if s.sent[body]++; s.sent[body] > s.lose[body] {
		ack(p)
	}
}

func (s *swallower) copies(body string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent[body]
}

// A caller that waits for an outcome also notices that the broker is gone silently.
func TestSilenceIsNoticedWhileAnOutcomeIsOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := behindProxy(t, soon)
		p.recovers()
		p.proxy.HoldConfirms(true)
		l := p.letter("letter")
		l.stayOpen(2)
		require.Equal(t, 1, p.proxy.Connections())
		p.proxy.Blackhole(true)
		await(t, "the end of the connection", func() bool {
			l.try()
			return p.proxy.Connections() > 1
		})
		p.proxy.Blackhole(false)
		p.proxy.HoldConfirms(false)
		l.deliver()
	})
}

// A broker that has blocked publishing answers nothing, and says so. The connection lives on, and
// the outcome stays open.
func TestBlockedConnectionIsNotEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		held := make(chan *peer.Publish, 1)
		p, s := onPeer(t, soon, func(p *peer.Publish) {
			p.Blocked(true)
			held <- p
		})
		l := p.letter("letter")
		l.stayOpen(3)
		first := <-held
		first.Blocked(false)
		ack(first)
		l.deliver()
		assert.Equal(t, 1, p.proxy.Connections())
		assert.Equal(t, 1, s.Published())
	})
}

// A publish that is released keeps neither a place nor a channel.
func TestReleasedOutcomesKeepNoChannel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, _ := onPeer(t, soon, func(*peer.Publish) {})
		letters := make([]*letter, 5)
		for i := range letters {
			letters[i] = p.letter("letter")
			letters[i].key = fmt.Sprint("queue ", i)
		}
		together(letters, func(l *letter) { l.stayOpen(1) })
		assert.Positive(t, p.Retired())
		for _, l := range letters {
			l.pending.Release()
			l.pending.Release()
			assert.False(t, l.pending.IsOpen())
			assert.Error(t, l.pending.Await(t.Context()))
		}
		assert.Zero(t, p.Retired(), "channels that are open for released publishes")
		assert.Equal(t, 1, p.proxy.Connections())
	})
}

func TestCloseEndsOpenOutcomes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, _ := onPeer(t, soon, func(*peer.Publish) {})
		l := p.letter("letter")
		l.stayOpen(1)
		within(t, goodbye, "Close", p.Close)
		within(t, 0, "Await", func() {
			assert.ErrorIs(t, l.pending.Await(t.Context()), publisher.ErrUnknown)
		})
		assert.False(t, l.pending.IsOpen())
	})
}
