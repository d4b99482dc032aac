package chaos

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"sync"
	"time"

	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// Lost names the thing that a consumer process lost.
type Lost string

// The losses. A connection that has neither delivered nor published a message explains nothing, and
// is not recorded.
const (
	LostProcess    Lost = "process"
	LostConsuming  Lost = "consuming connection"  // or its channel, or its consumer, by the broker
	LostPublishing Lost = "publishing connection" // or its channel, by the broker, or a confirm
)

// Loss is the end of a consumer process, of one of its connections, or of a channel that the broker
// closed.
type Loss struct {
	Consumer string // its name, which the next process has too
	What     Lost
	Began    time.Time // when the process was told to end; At for everything else
	At       time.Time
	// Own is true if the client ended its connection first. Such an end explains nothing unless a
	// fault silenced the connection.
	Own bool
}

// witness records the losses that it sees on the connections of consumers. A confirm is lost when a
// consumer publishes to a target that has confirmed nothing for three confirm timeouts, although
// something is open there: it may be a scout.
type witness struct {
	timeout time.Duration // of the consumers' confirms

	mu     sync.Mutex
	losses []Loss
}

// witnessed is a connection as its frames show it.
type witnessed struct {
	consumer            string
	consumes, publishes bool
	tags                map[uint16]uint64    // of the last publish, by channel
	open                map[publish]sent     // not confirmed
	scouted             map[string]time.Time // by target
}

// publish is named by its channel and tag.
type publish struct {
	channel uint16
	tag     uint64
}

type sent struct {
	target string
	at     time.Time
}

func (w *witness) record(l Loss) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.losses = append(w.losses, l)
}

// all returns the losses so far.
func (w *witness) all() []Loss {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.losses[:len(w.losses):len(w.losses)]
}

// watch records the ends of the connections through p.
func (w *witness) watch(p *testbroker.Proxy) {
	connections := map[int]*witnessed{}
	var mu sync.Mutex
	p.Tap(func(s testbroker.Seen) testbroker.Fault {
		mu.Lock()
		defer mu.Unlock()
		c := connections[s.Connection]
		if c == nil {
			c = &witnessed{}
			connections[s.Connection] = c
		}
		if what := c.look(s, w.timeout); what != "" {
			now := time.Now()
			w.record(Loss{Consumer: c.consumer, What: what, Began: now, At: now})
		}
		return testbroker.Fault{}
	})
	p.OnEnd(func(connection int, by testbroker.Party) {
		mu.Lock()
		defer mu.Unlock()
		if c := connections[connection]; c != nil {
			delete(connections, connection)
			now := time.Now()
			loss := Loss{Consumer: c.consumer, Began: now, At: now, Own: by == testbroker.Client}
			if c.consumes {
				loss.What = LostConsuming
				w.record(loss)
			}
			if c.publishes {
				loss.What = LostPublishing
				w.record(loss)
			}
		}
	})
}

// look takes in a frame, and returns the consumer's loss by it. A channel that the client itself
// closes is no loss: only a scout shows that a publish was given up.
func (c *witnessed) look(s testbroker.Seen, timeout time.Duration) Lost {
	switch method := s.Method(); {
	case s.Up && method == frame.ConnectionStartOk:
		c.consumer = connectionName(s.Args())
	case s.Up && method == frame.ChannelOpen:
		c.forget(s.Channel(), math.MaxUint64)
		delete(c.tags, s.Channel())
	case s.Up && method == frame.BasicPublish:
		c.publishes = true
		if c.scouts(s, timeout) {
			return LostPublishing
		}
	case !s.Up && (method == frame.BasicAck || method == frame.BasicNack):
		args := frame.Args(s.Args())
		if tag := args.Uint64(); args.Byte()&1 != 0 {
			c.forget(s.Channel(), tag)
		} else {
			delete(c.open, publish{s.Channel(), tag})
		}
	case !s.Up && method == frame.BasicDeliver:
		c.consumes = true
	case !s.Up && (method == frame.ChannelClose || method == frame.BasicCancel):
		switch {
		case c.consumes:
			return LostConsuming
		case c.publishes:
			return LostPublishing
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
	p := sent{args.Short() + " " + args.Short(), now}
	since := now
	for _, other := range c.open {
		if other.target == p.target && other.at.Before(since) {
			since = other.at
		}
	}
	if c.open == nil {
		c.tags, c.open, c.scouted = map[uint16]uint64{}, map[publish]sent{}, map[string]time.Time{}
	}
	c.tags[s.Channel()]++
	c.open[publish{s.Channel(), c.tags[s.Channel()]}] = p
	if now.Sub(latest(since, c.scouted[p.target])) < 2*timeout {
		return false
	}
	c.scouted[p.target] = now
	return true
}

// forget forgets the publishes of a channel, up to a tag.
func (c *witnessed) forget(channel uint16, last uint64) {
	maps.DeleteFunc(c.open, func(p publish, _ sent) bool {
		return p.channel == channel && p.tag <= last
	})
}

// connectionName returns the first word of a connection's name, which is the consumer's name.
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
