package testbroker

import "encoding/binary"

// The parts of an AMQP 0-9-1 frame that frameCounter looks at.
const (
	headerSize    = 8 // the protocol header "AMQP" 0 0 9 1 before the first frame
	frameOverhead = 7 // type, channel, size
	frameEnd      = 1
	frameMethod   = 1
	classBasic    = 60
	methodPublish = 40
)

// frameCounter counts the basic.publish methods in what a client sends, however it is cut into
// pieces. It gives up on a stream that does not begin as AMQP does.
type frameCounter struct {
	head    []byte
	skip    uint64
	started bool
	off     bool
}

// count returns the number of publishes that begin in p.
func (c *frameCounter) count(p []byte) int {
	n := 0
	for len(p) > 0 && !c.off {
		if c.skip > 0 {
			step := min(c.skip, uint64(len(p)))
			c.skip -= step
			p = p[step:]
			continue
		}
		need := c.need()
		step := min(need-len(c.head), len(p))
		c.head = append(c.head, p[:step]...)
		p = p[step:]
		if len(c.head) == need && c.take() {
			n++
		}
	}
	return n
}

// need is the number of bytes at the beginning of the stream, or of a frame, that are looked at
// next.
func (c *frameCounter) need() int {
	if !c.started {
		return headerSize
	}
	if len(c.head) >= frameOverhead && c.head[0] == frameMethod && c.size() >= 4 {
		return frameOverhead + 4
	}
	return frameOverhead
}

// take looks at a full head; it reports a publish.
func (c *frameCounter) take() bool {
	if !c.started {
		c.started = true
		c.off = string(c.head[:4]) != "AMQP"
		c.head = c.head[:0]
		return false
	}
	if c.need() > len(c.head) {
		return false // a method frame: its class and method come next
	}
	seen := uint64(len(c.head) - frameOverhead)
	publish := seen == 4 &&
		binary.BigEndian.Uint16(c.head[7:9]) == classBasic &&
		binary.BigEndian.Uint16(c.head[9:11]) == methodPublish
	c.skip = uint64(c.size()) - seen + frameEnd
	c.head = c.head[:0]
	return publish
}

func (c *frameCounter) size() uint32 { return binary.BigEndian.Uint32(c.head[3:7]) }
