package chaos

import (
	"bytes"
	"encoding/binary"
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
	LostPublishing Lost = "publishing connection" // or its channel, by the broker
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

// witness records the losses that it sees on the connections of consumers.
type witness struct {
	mu     sync.Mutex
	losses []Loss
}

// witnessed is a connection as its frames show it.
type witnessed struct {
	consumer            string
	consumes, publishes bool
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
		if what := c.look(s); what != "" {
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
// closes is no loss: the client may not give up a publish that way.
func (c *witnessed) look(s testbroker.Seen) Lost {
	switch method := s.Method(); {
	case s.Up && method == frame.ConnectionStartOk:
		c.consumer = connectionName(s.Args())
	case s.Up && method == frame.BasicPublish:
		c.publishes = true
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
