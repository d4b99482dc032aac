package pagetest

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/chromedp/cdproto/page"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology/inorder"
)

// Given a queue that is handled in order and dead letters that block keys, then a person sees them,
// replays one key and releases another, by clicks alone.
func keysInOrder(t *testing.T, y *yard) {
	axe := axeFile(t)
	h := y.newHouse(t)
	var mended atomic.Bool
	var handled atomic.Int64
	h.serve(rig.Config{
		Queue: "orders", Policy: backoff.None{},
		Configure: rig.WithQueue(amqp.Table{
			"x-queue-type": "quorum", "x-single-active-consumer": true,
		}),
		Strategy: inorder.Strategy{Block: true, KeyBy: func(msg *message.Message) string {
			return msg.Metadata.Get("key")
		}},
		Handle: func(msg *message.Message) error {
			if strings.HasPrefix(string(msg.Payload), "bad") && !mended.Load() {
				return errors.New("no such customer")
			}
			handled.Add(1)
			return nil
		},
	})
	long := "customer " + strings.Repeat("0123456789", 30)
	for _, key := range []string{"order 17", "<b>order 18</b>\x1b[2J", long} {
		for _, body := range []string{"bad 1", "2", "3"} {
			m := rig.Message(body)
			m.MessageId, m.Headers = key[:7]+body, amqp.Table{"key": key}
			rig.Publish(t, h.url, "", "orders", m)
		}
	}
	rig.AwaitDepth(t, h.url, "orders.dlq", 3)
	h.act()
	b := h.tab()
	m := mouse{b}
	call(b, page.SetBypassCSP, page.SetBypassCSPParams{Enabled: true}) // for axe alone
	b.visit("/waiting?queue=orders")
	b.inspect(named{"order-before", b.path()}, axe)
	m.press("Look at the keys")
	b.see("blocked keys", "leads", "of at most 10")
	b.inspect(named{"order", b.path()}, axe)
	b.dress(looks[0])
	mended.Store(true)
	m.press(`Replay key "order 17"`)
	b.see("Replay 1 dead letter of key", "Nothing has moved yet")
	b.inspect(named{"order-confirm", b.path()}, axe)
	require.Zero(t, handled.Load())
	b.dress(looks[0])
	m.press("Replay 1 dead letter")
	b.ended()
	testbroker.WaitFor(t, "the key to go on", patience, func() bool { return handled.Load() == 3 })
	b.visit("/waiting?queue=orders")
	eval[bool](b, "window.old = true")
	m.press("Look at the keys again")
	b.await("!window.old") // its buttons are of the look before, and are refused during this one
	m.press(`Release key "<b>order 18`)
	b.see("Release key", "which goes on without its dead letter")
	m.press("Release key")
	b.ended()
	testbroker.WaitFor(t, "the key to go on", patience, func() bool { return handled.Load() == 5 })
	rig.AwaitDepth(t, h.url, "orders.dlq", 2)
}
