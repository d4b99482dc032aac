package pagetest

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
)

// Given a queue that is handled in order and dead letters that block keys, then a person sees them
// and replays one key, by clicks alone.
func keysInOrder(t *testing.T, y *yard) {
	axe := axeFile(t)
	h := y.newHouse(t)
	var mended atomic.Bool
	o := h.Orders(shop.InOrder(), shop.Bad(mended.Load))
	keys := []string{
		"order 17", "<b>order 18</b>\x1b[2J", "customer " + strings.Repeat("0123456789", 30),
	}
	for n, key := range keys {
		o.Keyed(key, fmt.Sprint("bad ", n), fmt.Sprint("second ", n), fmt.Sprint("third ", n))
	}
	o.AwaitDead(3)
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
	require.Empty(t, o.Handled())
	b.dress(looks[0])
	m.press("Replay 1 dead letter")
	b.ended()
	o.AwaitHandled(3)
	o.AwaitDead(2)
}
