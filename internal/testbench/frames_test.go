//go:build unix

package testbench_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/internal/testbench"
)

func frame(kind byte, payload []byte) []byte {
	head := []byte{kind, 0, 1}
	head = binary.BigEndian.AppendUint32(head, uint32(len(payload)))
	return append(append(head, payload...), 0xCE)
}

func method(class, id uint16, rest string) []byte {
	p := binary.BigEndian.AppendUint16(nil, class)
	return frame(1, append(binary.BigEndian.AppendUint16(p, id), rest...))
}

func TestPublishesAreCountedHoweverTheStreamIsCut(t *testing.T) {
	t.Parallel()
	publish := method(60, 40, "\x00\x00\x00\x05queue\x00")
	look := append([]byte{0, 60, 0, 40}, "a body that looks like a publish"...)
	stream := []byte("AMQP\x00\x00\x09\x01")
	for _, part := range [][]byte{
		method(10, 11, "start-ok"), frame(8, nil), publish,
		frame(2, look), frame(3, look), frame(3, publish), // header and body frames
		method(60, 80, "ack"), method(50, 40, "queue class, same method id"), frame(1, []byte{0, 60}),
		publish, publish, frame(8, nil),
	} {
		stream = append(stream, part...)
	}
	for _, n := range []int{1, 2, 3, 7, 8, 11, 64, len(stream)} {
		t.Run(fmt.Sprintf("pieces of %d", n), func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, 3, testbench.CountPublishes(stream, n))
		})
	}
	assert.Zero(t, testbench.CountPublishes(append([]byte("HTTP/1.1"), publish...), 5), "not AMQP")
}
