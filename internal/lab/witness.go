package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"sync"
	"time"

	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// The things that an instance loses. A connection that has neither delivered nor published a
// message explains nothing, and is not recorded. The end of a process is an event of its own.
const (
	lostProcess    = "process"
	lostConsuming  = "consuming connection"  // or its channel, or its consumer, by the broker
	lostPublishing = "publishing connection" // or its channel, by the broker, or a confirm
)

// witness records the losses that it sees on the connections of instances. A confirm is lost when
// an instance publishes to a target that has confirmed nothing for three confirm timeouts, although
// something is open there: it may be a scout.
type witness struct {
	timeout time.Duration // of the confirms
	record  func(event)

	mu          sync.Mutex
	connections map[connected]*witnessed
}

// connected names a connection.
type connected struct {
	proxy  *testbroker.Proxy
	number int
}

// witnessed is a connection as its frames show it.
type witnessed struct {
	who                 string
	consumes, publishes bool
	tags                map[uint16]uint64    // of the last publish, by channel
	open                map[publish]onWay    // not confirmed
	scouted             map[string]time.Time // by target
}

// publish is named by its channel and tag.
type publish struct {
	channel uint16
	tag     uint64
}

type onWay struct {
	target string
	at     time.Time
}

func newWitness(timeout time.Duration, record func(event)) *witness {
	return &witness{timeout: timeout, record: record, connections: map[connected]*witnessed{}}
}

// watch records the losses of the connections through p.
func (w *witness) watch(p *testbroker.Proxy) {
	with := func(connection int, do func(*witnessed)) {
		w.mu.Lock()
		defer w.mu.Unlock()
		name := connected{p, connection}
		if w.connections[name] == nil {
			w.connections[name] = &witnessed{
				tags: map[uint16]uint64{}, open: map[publish]onWay{}, scouted: map[string]time.Time{},
			}
		}
		do(w.connections[name])
	}
	p.Tap(func(s testbroker.Seen) testbroker.Fault {
		with(s.Connection, func(c *witnessed) {
			if what := c.look(s, w.timeout); what != "" {
				w.record(event{Kind: lost, Who: c.who, Text: what})
			}
		})
		return testbroker.Fault{}
	})
	p.OnEnd(func(connection int, by testbroker.Party) {
		with(connection, func(c *witnessed) {
			delete(w.connections, connected{p, connection})
			e := event{Kind: lost, Who: c.who, Own: by == testbroker.Client}
			if e.Text = lostConsuming; c.consumes {
				w.record(e)
			}
			if e.Text = lostPublishing; c.publishes {
				w.record(e)
			}
		})
	})
}

// open lists the publishes that are not confirmed.
func (w *witness) open() (lines []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.connections {
		for p, at := range c.open {
			lines = append(lines, fmt.Sprintf("%s: channel %d, publish %d to %q, open for %s", c.who,
				p.channel, p.tag, at.target, time.Since(at.at).Round(time.Millisecond)))
		}
	}
	return lines
}

// look takes in a frame, and returns the loss by it. A channel that the client itself closes is no
// loss: only a scout shows that a publish was given up.
func (c *witnessed) look(s testbroker.Seen, timeout time.Duration) string {
	if s.Up {
		switch s.Method() {
		case frame.ConnectionStartOk:
			c.who = connectionName(s.Args())
		case frame.ChannelOpen:
			c.forget(s.Channel(), 0, math.MaxUint64)
			delete(c.tags, s.Channel())
		case frame.BasicPublish:
			c.publishes = true
			if c.scouts(s, timeout) {
				return lostPublishing
			}
		}
		return ""
	}
	switch s.Method() {
	case frame.BasicAck, frame.BasicNack:
		args := frame.Args(s.Args())
		tag := args.Uint64()
		first := tag
		if args.Byte()&1 != 0 {
			first = 0
		}
		c.forget(s.Channel(), first, tag)
	case frame.BasicDeliver:
		c.consumes = true
	case frame.ChannelClose, frame.BasicCancel:
		if c.consumes {
			return lostConsuming
		}
		if c.publishes {
			return lostPublishing
		}
	}
	return ""
}

// scouts notes a publish, and reports whether it may be a scout: the library waits for two timeouts
// after the first one.
func (c *witnessed) scouts(s testbroker.Seen, timeout time.Duration) bool {
	args := frame.Args(s.Args())
	args.Skip(2)
	now := time.Now()
	p := onWay{args.Short() + " " + args.Short(), now}
	since := now
	for _, other := range c.open {
		if other.target == p.target {
			since = earliest(since, other.at)
		}
	}
	c.tags[s.Channel()]++
	c.open[publish{s.Channel(), c.tags[s.Channel()]}] = p
	if now.Sub(latest(since, c.scouted[p.target])) < 2*timeout {
		return false
	}
	c.scouted[p.target] = now
	return true
}

// forget forgets the publishes of a channel between two tags.
func (c *witnessed) forget(channel uint16, first, last uint64) {
	maps.DeleteFunc(c.open, func(p publish, _ onWay) bool {
		return p.channel == channel && first <= p.tag && p.tag <= last
	})
}

// connectionName returns the first word of a connection's name, which names the instance and the
// line.
func connectionName(startOk []byte) string {
	_, after, found := bytes.Cut(startOk, []byte("\x0fconnection_nameS"))
	if !found || len(after) < 4 {
		return ""
	}
	size := binary.BigEndian.Uint32(after)
	after = after[4:]
	if uint64(size) > uint64(len(after)) {
		return ""
	}
	name, _, _ := bytes.Cut(after[:size], []byte(":"))
	return string(name)
}
