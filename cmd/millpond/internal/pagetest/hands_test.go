package pagetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// hands use a page as a person does: they know the names of links, buttons and fields, and no
// selectors. All of them wait until the page has the name.
type hands interface {
	// press follows the link or presses the button with a name.
	press(name string)
	// fill replaces the text of the field with a label.
	fill(label, text string)
	// hold checks the box with a label.
	hold(label string)
}

// nameOf is a function in the page: the name of a link, button or field.
const nameOf = `(e) => ((e.labels && e.labels.length ? e.labels[0].innerText : "") ||
	e.getAttribute("aria-label") || e.innerText || "").trim().replace(/\s+/g, " ")`

// find is the first visible element that has the name, or whose name begins with it.
func find(name string) string {
	text, _ := json.Marshal(name)
	return fmt.Sprintf(`(() => {
		const all = [...document.querySelectorAll("button, a, input, textarea, select, summary")]
			.filter((e) => e.type !== "hidden" && e.getClientRects().length);
		const nameOf = %s;
		return all.find((e) => e.tagName === "BUTTON" && nameOf(e) === %s) ??
			all.find((e) => nameOf(e) === %[2]s) ?? all.find((e) => nameOf(e).startsWith(%[2]s));
	})()`, nameOf, text)
}

// mouse clicks alone. Text comes from the keyboard, of course.
type mouse struct{ *tab }

func (m mouse) press(name string) {
	m.t.Helper()
	m.seek(name)
	var at []float64
	// While a look is under way the page is about to load itself again, and everything moves.
	testbroker.WaitFor(m.t, name+" to stand still", patience, func() bool {
		last := at
		at = eval[[]float64](m.tab, fmt.Sprintf(`(() => {
			const e = %s;
			if (!e || document.querySelector(".box[data-live]")) return [];
			e.scrollIntoView({block: "center"});
			const box = e.getClientRects()[0], x = box.x + box.width / 2, y = box.y + box.height / 2;
			const top = document.elementFromPoint(x, y);
			return e === top || e.contains(top) ? [x, y] : [];
		})()`, find(name)))
		return len(at) == 2 && slices.Equal(last, at)
	})
	m.clicks++
	require.NoError(m.t, chromedp.Do(m.ctx, chromedp.MouseClickXY(at[0], at[1])))
}

func (m mouse) fill(label, text string) {
	m.t.Helper()
	m.press(label)
	m.replace(text)
}

func (m mouse) hold(label string) { m.t.Helper(); m.press(label) }

// keyboard uses Tab, Enter and letters alone.
type keyboard struct{ *tab }

func (k keyboard) press(name string) {
	k.t.Helper()
	k.reach(name)
	k.clicks++
	require.NoError(k.t, chromedp.Do(k.ctx, chromedp.KeyEvent(kb.Enter)))
}

func (k keyboard) fill(label, text string) {
	k.t.Helper()
	k.reach(label)
	k.replace(text)
}

func (k keyboard) hold(label string) {
	k.t.Helper()
	k.reach(label)
	require.NoError(k.t, chromedp.Do(k.ctx, chromedp.KeyEvent(" ")))
}

// reach presses Tab until the element with the name has the focus, and requires that
// the focus is visible.
func (k keyboard) reach(name string) {
	k.t.Helper()
	k.seek(name)
	for range 400 {
		if eval[bool](k.tab, fmt.Sprintf(`document.activeElement === %s`, find(name))) {
			require.True(k.t, eval[bool](k.tab, `(() => {
				const s = getComputedStyle(document.activeElement);
				return s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2;
			})()`), "the focus on %q is seen", name)
			return
		}
		require.NoError(k.t, chromedp.Do(k.ctx, chromedp.KeyEvent(kb.Tab)))
	}
	k.shot("unreached")
	require.Fail(k.t, "Tab does not reach "+name)
}

// ended waits until the page shows the end of an action.
func (b *tab) ended() {
	b.t.Helper()
	b.await(`[...document.querySelectorAll("dt")].some((e) => e.innerText === "ended") &&
		![...document.querySelectorAll("button")].some((e) => e.innerText === "Stop")`)
}

// seek waits until the page has an element with the name.
func (b *tab) seek(name string) {
	b.t.Helper()
	for n := 0; !eval[bool](b, "!!"+find(name)); n++ {
		if n > 600 {
			b.shot("missing")
			require.Contains(b.t, b.text(), name, "a link, button or field")
		}
		b.pause()
	}
}

// replace types over the text of the field that has the focus.
func (b *tab) replace(text string) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx,
		chromedp.KeyEvent("a", chromedp.KeyModifiers(chromedp.ModifierCtrl)),
		chromedp.KeyEvent(strings.ReplaceAll(text, "\n", kb.Enter))))
	b.await(fmt.Sprintf("document.activeElement.value === %q", text))
}
