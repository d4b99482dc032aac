//go:build unix

package testbroker_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func method(m frame.Method, rest string) []byte { return frame.NewMethod(1, m, []byte(rest)) }

func TestPublishesAreCountedHoweverTheStreamIsCut(t *testing.T) {
	t.Parallel()
	publish := method(frame.BasicPublish, "\x00\x00\x00\x05queue\x00")
	look := append([]byte{0, 60, 0, 40}, "a body that looks like a publish"...)
	stream := []byte("AMQP\x00\x00\x09\x01")
	for _, part := range [][]byte{
		method(frame.ConnectionStartOk, "start-ok"), frame.New(frame.KindHeartbeat, 1, nil), publish,
		frame.New(frame.KindHeader, 1, look), frame.New(frame.KindBody, 1, look), frame.New(frame.KindBody, 1, publish), // header and body frames
		method(frame.BasicAck, "ack"), method(50<<16|40,
			"queue class, same method id"), frame.New(frame.KindMethod, 1, []byte{0, 60}),
		publish, publish, frame.New(frame.KindHeartbeat, 1, nil),
	} {
		stream = append(stream, part...)
	}
	for _, n := range []int{1, 2, 3, 7, 8, 11, 64, len(stream)} {
		t.Run(fmt.Sprintf("pieces of %d", n), func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, 3, testbroker.CountPublishes(stream, n))
		})
	}
	assert.Zero(t, testbroker.CountPublishes(append([]byte("HTTP/1.1"), publish...), 5), "not AMQP")
}
