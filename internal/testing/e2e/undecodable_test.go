package e2e_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
)

// Given a message that the marshaler refuses, then the message is dead-lettered unchanged, and
// the next one is handled (C7).
func TestUndecodableIsDeadLettered(t *testing.T) {
	t.Parallel()
	handled := make(chan string, 10)
	r := rig.Start(t, rig.Config{
		Policy: backoff.List{time.Second}, Configure: rig.Picky,
		Handle: func(msg *message.Message) error { handled <- string(msg.Payload); return nil },
	})
	refused := []string{"refuse", "loud", "panic", "nothing"}
	of := func(body string) amqp.Publishing {
		msg := foreign()
		msg.Body = []byte(body)
		return msg
	}
	for _, body := range append(refused, "fine") {
		r.Publish(of(body))
	}
	require.Equal(t, "fine", <-handled)
	for _, body := range refused {
		dead := r.DeadLetter()
		requireSame(t, of(body), dead)
		require.Equal(t, "undecodable", dead.Headers[header.DeadReason])
		require.Equal(t, "0", dead.Headers[header.DeadFailures])
	}
	require.Equal(t, 1, r.Logs.Said("marshaler panicked"))
	require.Less(t, len(r.Logs.Text()), 10_000, "errors are cut")
}

// unreadable returns header tables that a broker takes and that end the connection of
// amqp091-go 1.16 (F26). They are bytes because a client would write only some of them.
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
	list := binary.BigEndian.AppendUint32([]byte("\x04listA"), 8193)
	large := binary.BigEndian.AppendUint32(append(deep(40), "\x03bigS"...), 130_000)
	return map[string][]byte{
		"nested 33 deep":       deep(33),
		"nested 1000 deep":     deep(1000),
		"10000 headers":        many,
		"a list of 8193":       append(list, strings.Repeat("V", 8193)...),
		"an unsigned long":     {1, 'k', 'L', 0xff, 0, 0, 0, 0, 0, 0, 1},
		"headers of 130 KiB":   append(large, make([]byte, 130_000)...),
		"forged by a producer": append([]byte("\x13"+header.Unreadable+"x"), 0, 0, 0, 1, 'a'),
	}
}

// Such a message would end the connection of every consumer, again and again, and the messages
// behind it would never be handled. It is dead-lettered with its headers as bytes, so that any
// client can read the dead letter.
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
				Handle: func(msg *message.Message) error {
					if string(msg.Payload) == "normal" {
						normal.Add()
					} else {
						readable.Add()
					}
					return nil
				},
			})
			cases := unreadable()
			for name, table := range cases {
				require.NoError(t, rig.Forge(t, r.URL, r.Queue, rig.HeadersOnly(table)), name)
				r.Publish(amqp.Publishing{Body: []byte("normal")})
			}
			ch := testbroker.Channel(t, r.URL)
			dead := map[string]amqp.Delivery{}
			rig.WaitFor(t, "all to be handled or dead", func() bool {
				d, ok, err := ch.Get(r.Queue+".dlq", true)
				require.NoError(t, err)
				if raw, _ := d.Headers[header.Unreadable].([]byte); ok {
					dead[string(raw)] = d
				}
				return normal.Count() == len(cases) && len(dead)+readable.Count() == len(cases)
			})
			require.LessOrEqual(t, readable.Count(), 1)
			for name, table := range cases {
				want := string(table[:min(len(table), 120<<10)])
				switch name {
				case "an unsigned long": // From 4.0 on the broker makes it a long.
					if readable.Count() == 1 {
						continue
					}
				case "forged by a producer":
					want = "a"
				case "headers of 130 KiB": // 4.0 sends them in another order.
					for raw := range dead {
						if len(raw) == 120<<10 {
							want = raw
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
