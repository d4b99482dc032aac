package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/memnet"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Given a service of two replicas with the real limits, when each day of a month has an event and
// each night a deployment, then every message ends, the events explain every copy and every call,
// and no delivery is in hand for as long as the broker's consumer timeout.
//
//nolint:paralleltest // the clock of the host jumps
func TestAMonthInVirtualTime(t *testing.T) {
	defer clock.Jump(time.Hour)
	synctest.Test(t, func(t *testing.T) {
		m := &month{t: t, stories: map[string]*story{}, arrived: map[inHand]time.Time{}}
		m.server = peer.Start(t, m.script)
		m.publishing = testbroker.NewProxy(t, m.server.URL())
		m.publishing.Tap(func(testbroker.Seen) testbroker.Fault { return testbroker.Fault{} })
		m.consuming = testbroker.NewProxy(t, m.server.URL())
		m.consuming.Tap(m.hands)
		for i := range m.replicas {
			m.replicas[i] = m.start()
		}
		for day := range 30 {
			m.traffic(10 * time.Minute)
			e := monthEvents[day%len(monthEvents)]
			began := time.Now()
			e.happen(m)
			m.struck = append(m.struck, monthFault{e, began, time.Now().Add(time.Minute)})
			m.traffic(10 * time.Minute)
			for i := range m.replicas {
				m.deploy(i)
			}
		}
		time.Sleep(8 * time.Hour) // longer than all waits
		m.verdict()
	})
}

// monthEvent is the event of a day.
type monthEvent struct {
	name string
	// copies is how many more copies of one message it may make, again how often a handler may be
	// called once more with the same attempt of one copy.
	copies, again int
	happen        func(*month)
}

var monthEvents = []monthEvent{
	// The connection is lost at its end, with outcomes that nothing tells. A delivery goes back when
	// its hold ends, and with each probe.
	{"nothing can be published for four hours", 1, 20, func(m *month) {
		m.during(4*time.Hour, m.publishing.Blackhole)
	}},
	{"confirms take a minute", 1, 1, func(m *month) {
		m.during(time.Minute, m.publishing.HoldConfirms)
	}},
	{"the clock jumps by three hours, and back by four", 0, 0, func(m *month) {
		for _, d := range []time.Duration{3 * time.Hour, -4 * time.Hour, time.Hour} {
			clock.Jump(d)
			m.traffic(10 * time.Minute)
		}
	}},
	{"connections are lost six times in half an hour", 6, 6, func(m *month) {
		for range 6 {
			m.consuming.Cut()
			m.publishing.Cut()
			m.traffic(5 * time.Minute)
		}
	}},
	{"the wait queues and the dead-letter queue are full for an hour", 0, 20, func(m *month) {
		m.during(time.Hour, func(on bool) { m.mu.Lock(); m.full = on; m.mu.Unlock() })
	}},
	{"no byte passes for an hour", 2, 6, func(m *month) {
		m.during(time.Hour, func(on bool) { m.consuming.Blackhole(on); m.publishing.Blackhole(on) })
	}},
	{"four hours without publishes, with a deployment", 3, 20, func(m *month) {
		m.publishing.Blackhole(true)
		m.traffic(2 * time.Hour)
		for _, r := range m.replicas {
			r.Stop() // the new ones wait for a connection
		}
		m.traffic(2 * time.Hour)
		m.publishing.Blackhole(false)
		for i := range m.replicas {
			m.replicas[i] = m.start()
		}
	}},
}

const (
	monthTimeout  = 30 * time.Minute // of the broker, for a delivery
	monthReplicas = 2
	handledOnce   = "handled"
)

var (
	monthPolicy = backoff.List{10 * time.Minute, 30 * time.Minute}
	errMonth    = errors.New("the shop is closed")
)

type month struct {
	t                     *testing.T
	server                *peer.Server
	publishing, consuming *testbroker.Proxy
	replicas              [monthReplicas]*rig.Service
	sent                  int

	mu      sync.Mutex
	full    bool
	stories map[string]*story
	struck  []monthFault
	arrived map[inHand]time.Time
	longest time.Duration // that a delivery was in hand
}

type monthFault struct {
	monthEvent
	from, to time.Time
}

// story has the events of one message.
type story struct {
	sent, last time.Time
	calls      map[int]int // by attempt
	ends       []string
}

// inHand is a delivery that is not settled.
type inHand struct {
	connection int
	channel    uint16
	tag        uint64
}

func (m *month) start() *rig.Service {
	return rig.Start(m.t, rig.Config{
		URL: m.consuming.URL(), PublisherURL: m.publishing.URL(), Queue: queueName, Keep: true,
		Policy: monthPolicy, Forgotten: true, Handle: m.handle,
		Configure: func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.Prefetch(10)(cfg) },
		SubscriberOptions: []topology.SubscriberOption{
			topology.WithConcurrency(4), topology.WithConsumerTimeout(monthTimeout),
		},
		RouterConfig: message.RouterConfig{CloseTimeout: time.Minute},
	})
}

func (m *month) deploy(i int) {
	m.replicas[i].Stop()
	m.replicas[i] = m.start()
}

// during turns something on for d, while messages come.
func (m *month) during(d time.Duration, turn func(on bool)) {
	turn(true)
	m.traffic(d)
	turn(false)
}

// traffic publishes a message each half minute for d.
func (m *month) traffic(d time.Duration) {
	conn, err := amqp.DialConfig(m.server.URL(), amqp.Config{Dial: memnet.Dial})
	require.NoError(m.t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(m.t, err)
	require.NoError(m.t, ch.Confirm(false))
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(30 * time.Second) {
		m.sent++
		body := fmt.Sprint(m.sent)
		m.mu.Lock()
		m.stories[body] = &story{sent: time.Now(), last: time.Now(), calls: map[int]int{}}
		m.mu.Unlock()
		confirm, err := ch.PublishWithDeferredConfirm("", queueName, true, false, rig.Message(body))
		require.NoError(m.t, err)
		require.True(m.t, confirm.Wait())
	}
}

// script is the broker: wait queues and a dead-letter queue, which may be full.
func (m *month) script(p *peer.Publish) {
	m.mu.Lock()
	full := m.full && p.RoutingKey != queueName
	s := m.stories[string(p.Body)]
	if s != nil && p.RoutingKey == queueName+".dlq" && !full {
		s.ends, s.last = append(s.ends, "dead"), time.Now()
	}
	m.mu.Unlock()
	if full {
		p.Nack(p.Tag, false)
		return
	}
	rig.WaitQueues(p)
}

// hands measures how long deliveries are in hand.
func (m *month) hands(s testbroker.Seen) testbroker.Fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch method := s.Method(); {
	case !s.Up && method == frame.BasicDeliver:
		args := frame.Args(s.Args())
		args.Short()
		m.arrived[inHand{s.Connection, s.Channel(), args.Uint64()}] = time.Now()
	case s.Up && slices.Contains(
		[]frame.Method{frame.BasicAck, frame.BasicNack, frame.BasicReject}, method):
		args := frame.Args(s.Args())
		tag, flags := args.Uint64(), args.Byte()
		for d, at := range m.arrived {
			if d.connection == s.Connection && d.channel == s.Channel() && (d.tag == tag ||
				d.tag < tag && method != frame.BasicReject && flags&1 != 0) {
				m.longest = max(m.longest, time.Since(at))
				delete(m.arrived, d)
			}
		}
	}
	return testbroker.Fault{}
}

// handle treats the message as its number says.
func (m *month) handle(msg *message.Message) error {
	attempt := middleware.Attempt(msg.Context())
	var n int
	if _, err := fmt.Sscan(string(msg.Payload), &n); err != nil {
		return middleware.Permanent(err)
	}
	m.mu.Lock()
	s := m.stories[string(msg.Payload)]
	s.calls[attempt]++
	s.last = time.Now()
	m.mu.Unlock()
	switch kind := n % 20; {
	case kind == 12 && attempt == 1, kind == 13 && attempt <= 2, kind == 14:
		return errMonth
	case kind == 15:
		return middleware.Permanent(errMonth)
	case kind == 16 && attempt == 1:
		return middleware.RetryAfter(errMonth, time.Hour) // longer than all wait queues
	case kind == 18:
		select {
		case <-time.After(8 * time.Minute):
		case <-msg.Context().Done(): // by a deployment, which counts no attempt; a delivery follows
			m.mu.Lock()
			defer m.mu.Unlock()
			s.calls[attempt]--
			return msg.Context().Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.ends, s.last = append(s.ends, handledOnce), time.Now()
	return nil
}

// verdict names what no event explains.
func (m *month) verdict() {
	m.mu.Lock()
	defer m.mu.Unlock()
	total, again, dead := 0, 0, 0
	for body, s := range m.stories {
		copies, more := 0, 0
		for _, f := range m.struck {
			if !f.from.After(s.last) && !f.to.Before(s.sent) {
				copies, more = copies+f.copies, more+f.again
			}
		}
		require.NotEmpty(m.t, s.ends, "message %s has not ended: %v", body, s.calls)
		require.LessOrEqual(m.t, len(s.ends), 1+copies, "ends of message %s: %v", body, s.ends)
		for attempt, calls := range s.calls {
			require.LessOrEqual(m.t, attempt, len(monthPolicy)+1, "message %s", body)
			require.LessOrEqual(m.t, calls, (1+copies)*(1+more), "calls of %s, attempt %d", body, attempt)
			again += calls - 1
			total += calls
		}
		if s.ends[0] == "dead" {
			dead++
		}
	}
	m.t.Logf("%d messages, %d dead letters, %d calls, %d of them again; at most %s in hand", m.sent,
		dead, total, again, m.longest)
	require.Less(m.t, m.longest, monthTimeout)
	require.Greater(m.t, dead, m.sent/20)
}
