package topology_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
)

// unreadable are header tables that a broker takes and that end the connection
// of amqp091-go 1.16 (F26). They are written by hand, for a client would write
// only some of them.
func unreadable() map[string][]byte {
	deep := func(depth int) []byte {
		b := []byte{'V'}
		for range depth {
			b = append(binary.BigEndian.AppendUint32([]byte{'A'}, uint32(len(b))), b...)
		}
		return append([]byte{1, 'k'}, b...)
	}
	var many []byte
	for i := range 10_000 {
		many = append(many, []byte(fmt.Sprintf("\x04%04xV", i))...)
	}
	long := append([]byte("\x04listA"), binary.BigEndian.AppendUint32(nil, 8193)...)
	return map[string][]byte{
		"nested 33 deep":       deep(33),
		"nested 1000 deep":     deep(1000),
		"10000 headers":        many,
		"a list of 8193":       append(long, strings.Repeat("V", 8193)...),
		"an unsigned long":     {1, 'k', 'L', 0xff, 0, 0, 0, 0, 0, 0, 1},
		"headers of 130 KiB":   append(binary.BigEndian.AppendUint32(append(deep(40), "\x03bigS"...), 130_000), make([]byte, 130_000)...),
		"forged by a producer": append([]byte("\x13"+header.Unreadable+"x"), 0, 0, 0, 1, 'a'),
	}
}

// One such message would end the connection of everyone who is given it, again
// and again, and nothing behind it would ever be handled. It is dead-lettered,
// with its headers as bytes, in a dead-letter queue that any client can read.
func TestHeadersThatTheClientLibraryCannotRead(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var normal, readable rig.Timeline
			r := rig.Start(t, rig.Config{
				Policy: backoff.List{100 * time.Millisecond},
				Configure: func(cfg *wamqp.Config) {
					rig.Prefetch(10)(cfg)
					cfg.Queue.Arguments = amqp.Table{"x-queue-type": kind}
				},
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					if string(msg.Payload) == "normal" {
						normal.Add()
					} else {
						readable.Add()
					}
					return nil, nil
				},
			})
			cases := unreadable()
			for name, table := range cases {
				require.NoError(t, rig.Forge(t, r.URL, r.Queue, rig.HeadersOnly(table)), name)
				r.Publish(amqp.Publishing{Body: []byte("normal")})
			}
			ch := testbroker.Channel(t, r.URL)
			dead := map[string]amqp.Delivery{}
			rig.WaitFor(t, "all handled or dead", func() bool {
				d, ok, err := ch.Get(r.Queue+".dlq", true)
				require.NoError(t, err)
				if kept, _ := d.Headers[header.Unreadable].([]byte); ok {
					dead[string(kept)] = d
				}
				return normal.Count() == len(cases) && len(dead)+readable.Count() == len(cases)
			})
			require.LessOrEqual(t, readable.Count(), 1)
			for name, table := range cases {
				want := string(table[:min(len(table), 120<<10)])
				switch name {
				case "an unsigned long": // from 4.0 on the broker makes it a long
					if readable.Count() == 1 {
						continue
					}
				case "forged by a producer":
					want = "a"
				case "headers of 130 KiB": // 4.0 sends them in another order
					for kept := range dead {
						if len(kept) == 120<<10 {
							want = kept
						}
					}
				}
				d, there := dead[want]
				require.True(t, there, name)
				require.Equal(t, "forged", string(d.Body), name)
				require.Equal(t, string(header.ReasonUndecodable), d.Headers[header.DeadReason], name)
			}
			r.RequireOneConnection()
		})
	}
}
