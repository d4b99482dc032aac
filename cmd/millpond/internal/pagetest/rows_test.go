package pagetest

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
)

// keys presses keys, one after the other, wherever the focus is, once the page listens to them.
func (b *tab) keys(all ...string) {
	b.t.Helper()
	b.await(`document.querySelector("[data-sheet]")?.hidden === false`)
	for _, key := range all {
		require.NoError(b.t, chromedp.Do(b.ctx, chromedp.KeyEvent(key)))
	}
}

// Given letters of several queues, then a person goes to them, finds, ticks and opens them without
// a mouse, and the bar says what can be done with the ticked rows.
func handsOnRows(t *testing.T, y *yard) {
	h := y.newHouse(t)
	shop.NewWorld(h.House)
	h.act()
	b := h.tab()
	m := mouse{b}
	b.keys("g", "d")
	b.await(`location.pathname === "/dead"`)
	b.keys("?")
	b.await(`document.getElementById("sheet").open`)
	b.keys(kb.Escape)
	b.await(`!document.getElementById("sheet").open`)
	b.keys("/") // the driver types it, too, which browsers do not
	b.replace(`queue:orders error:"service l"`)
	b.keys(kb.Enter)
	b.seek("Take away error service l")
	m.press("Look at the letters")
	b.see("1 cause of 2 letters")
	require.Equal(t, "(2) Dead letters – millpond", eval[string](b, "document.title"))

	b.keys("j", "j", "x", "j", "x") // past the cause, to both letters
	b.await(`document.querySelectorAll("tr.ticked").length === 2`)
	b.see("Replay 2 ticked letters", "Discard 2 ticked letters")
	b.shot("ticked")
	b.keys("k", "x")
	b.await(`document.querySelector(".bar.on")?.innerText.includes("Replay 1 ticked letter")`)
	b.keys(kb.Escape)
	b.await(`!document.querySelector(".ticked, .bar.on")`)
	b.keys(kb.Enter)
	b.await(`location.pathname === "/letter"`)

	b.visit(few)
	m.press("Take away queue orders")
	b.await(`location.search === "?error=service+l"`)
	m.press("Take away error service l")
	m.press("Look")
	b.see("Replay by queue") // and loads itself again when the last look has ended
	b.await(`document.readyState === "complete" && !document.querySelector(".box[data-live]")`)
	b.await(`document.querySelectorAll("th.tick input").length === 2`)
	eval[bool](b, `!document.querySelectorAll("th.tick input")[1].click()`) // of the letters
	b.see("queues. An action works on one: untick some.")
	b.await(`[...document.querySelectorAll(".bar.on button")].every((e) => e.disabled)`)
	eval[string](b, `(() => { const t = document.getElementById("theme"); t.value = "dark";
		t.dispatchEvent(new Event("change")); return "" })()`)
	b.visit("/")
	require.Equal(t, "dark", eval[string](b, "getComputedStyle(document.documentElement).colorScheme"))
}
