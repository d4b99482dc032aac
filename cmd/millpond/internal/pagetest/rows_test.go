package pagetest

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
)

// keys presses keys, one after the other, wherever the focus is.
func (b *tab) keys(all ...string) {
	b.t.Helper()
	for _, key := range all {
		require.NoError(b.t, chromedp.Do(b.ctx, chromedp.KeyEvent(key)))
	}
}

// Given letters of two queues, then a person goes to them, finds and ticks them without a mouse, and
// the bar says what the ticked rows are.
func handsOnRows(t *testing.T, y *yard) {
	h := y.newHouse(t)
	shop.NewWorld(h.House)
	h.act()
	b := h.tab()
	listens := ` && document.querySelector("[data-sheet]")?.hidden === false`
	b.visit("/")
	b.keys("g", "w")
	b.await(`location.pathname === "/waiting"` + listens)
	b.keys("g", "d")
	b.await(`location.pathname === "/dead"` + listens)
	b.keys("?")
	b.await(`document.getElementById("sheet").open`)
	b.keys(kb.Escape)
	b.await(`!document.getElementById("sheet").open`)

	b.keys("/") // the driver types it, too, which browsers do not
	b.replace(`queue:orders error:"service l"`)
	b.keys(kb.Enter)
	b.await(`location.search === "?error=service+l&queue=orders"` + listens)
	mouse{b}.press("Look at the letters")
	b.see("1 cause of 2 letters")
	b.seek("Take away error service l")
	require.Equal(t, "(2) Dead letters – millpond", eval[string](b, "document.title"))
	b.await("true" + listens)

	b.keys("j", "j", "x", "j", "x") // the cause, and both letters
	b.see("Replay 2 letters", "Discard 2 letters")
	b.await(`document.activeElement.tagName === "TR" && document.querySelectorAll(".ticked").length === 2`)
	b.shot("ticked")
	b.keys("k", "x")
	b.see("Replay 1 letter")
	b.keys(kb.Escape)
	b.await(`document.querySelectorAll(".ticked, .bar.on").length === 0`)
	b.keys("x", kb.Enter)
	b.await(`location.pathname === "/letter"`)

	b.visit(few)
	mouse{b}.press("Take away queue orders")
	b.await(`location.search === "?error=service+l"`)
	mouse{b}.press("Clear all")
	b.await(`location.pathname === "/dead" && !location.search`)
	mouse{b}.press("Look")
	b.see("letters of")
	mouse{b}.hold("Tick all rows")
	b.see("queues. An action works on one")
	b.await(`[...document.querySelectorAll(".bar.on button")].every((e) => e.disabled)`)

	eval[string](b, `(() => { const t = document.getElementById("theme"); t.value = "dark";
		t.dispatchEvent(new Event("change")); return "" })()`)
	b.visit("/")
	require.Equal(t, "dark", eval[string](b, "getComputedStyle(document.documentElement).colorScheme"))
}
