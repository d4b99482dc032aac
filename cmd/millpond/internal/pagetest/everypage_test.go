package pagetest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
)

// TestPage drives the page in a Chromium. All of its parts share a broker and a browser.
func TestPage(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	for _, part := range []struct {
		name string
		run  func(t *testing.T, y *yard)
	}{
		{"every page is readable", everyPage},
		{"bad deploy", badDeploy},
		{"outage", outage},
		{"poison", poison},
		{"stranded", stranded},
		{"long wait", longWait},
		{"blocked key", blockedKey},
		{"dead consumer", deadConsumer},
		{"stop consuming", stopConsuming},
		{"hands", handsOnRows},
		{"hostile texts", hostileTexts},
		{"numbers move", numbersMove},
		{"clicks count", clicksCount},
		{"many letters", manyLetters},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			part.run(t, y)
		})
	}
}

// axeFile is axe-core, which internal/testing/testbroker/install.sh fetches.
func axeFile(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	script, err := os.ReadFile(filepath.Join(cache, "millpond", "axe-core-4.14.1.min.js"))
	if err != nil && os.Getenv(requireChromium) == "" {
		t.Skip("needs axe-core, of npm: make test-page")
	}
	require.NoError(t, err)
	return string(script)
}

// named is a page with a name for its pictures.
type named struct{ name, path string }

// Given a world with all kinds of trouble, then every page fits 390 and 1280
// pixels in light and dark, and axe-core finds nothing to improve.
func everyPage(t *testing.T, y *yard) {
	axe := axeFile(t)
	h := y.newHouse(t)
	w := shop.NewWorld(h.House)
	h.act()
	b := h.tab()
	call(b, page.SetBypassCSP, page.SetBypassCSPParams{Enabled: true}) // for axe alone
	for _, p := range h.pages(b, w) {
		b.inspect(p, axe)
	}
	b.visit("/")
	b.dress(looks[0])
	b.keep("page.png")
	h.answers(b, axe)
}

// few are two letters of the world.
const few = "/dead?queue=orders&error=service+l"

// answers inspects the pages that answer a form, and the login.
func (h *house) answers(b *tab, axe string) {
	h.t.Helper()
	m := mouse{b}
	b.visit(few)
	m.press("0-11-0")
	m.press("Edit …")
	b.see("Headers and payload")
	b.inspectHere("edit", axe)
	m.fill("Headers and payload", "tries int32 4\npayload as json:\n"+`{"order":17000}`)
	m.press("Rehearse the edit")
	b.see("The difference", "{+tries int32 4+}")
	b.inspectHere("edit-confirm", axe)
	b.tolerate("status of 400")
	b.visit(few)
	m.press("Replay 2 letters")
	m.press("Change how it goes")
	b.inspectHere("options", axe)
	m.fill("Messages a second", "many")
	m.press("Count again with these")
	b.see("write 50/s")
	b.inspectHere("refused", axe)
	b.dress(looks[0])
	b.visit(few)
	m.hold("Tick all rows")
	b.keys("?")
	b.inspectHere("keys", axe)
	b.visit("/doctor")
	m.press("Examine the broker")
	b.see("held, then sent")
	b.inspectHere("doctor-done", axe)

	file := filepath.Join(h.t.TempDir(), "token")
	require.NoError(h.t, os.WriteFile(file, []byte("actor-0123456789abcdef\n"), 0o600))
	h.open("--token-file", file)
	login := h.tab()
	call(login, page.SetBypassCSP, page.SetBypassCSPParams{Enabled: true})
	login.tolerate("status of 401")
	login.inspect(named{"login", "/"}, axe)
}

// pages prepares the pages by looking at everything, and lists them.
func (h *house) pages(b *tab, w *shop.World) []named {
	h.t.Helper()
	m := mouse{b}
	all := []named{
		{"now", "/"},
		{"not-found", "/nowhere"},
		{"actions-none", "/actions"},
		{"now-search", "/?q=RETURN"},
		{"queue", "/queue?queue=orders"},
		{"brakes", "/brakes"},
		{"dead-none", "/dead?error=nothing+like+this"},
		{"waiting-before", "/waiting"},
	}
	here := func(name string, texts ...string) {
		b.see(texts...)
		all = append(all, named{name, b.path()})
	}
	dead := 0
	for queue := range w.Dead {
		dead += w.DeadOf(queue)
	}
	b.visit("/")
	b.see(fmt.Sprintf("gone: %d messages wait for it", w.Waiting["gone"]),
		fmt.Sprintf("vanished: %d messages wait for it", w.Waiting["vanished"]),
		"brake "+shop.Brake+": stopped by hand by anna, ends in", "stock: no consumer, ",
		fmt.Sprintf(`key "k 1" is blocked by a dead letter, %d behind it`, w.Behind))
	b.await(fmt.Sprintf(`[...document.querySelectorAll("td[data-label=Dead]")].reduce(
		(sum, cell) => sum + Number(cell.innerText), 0) === %d`, dead))
	b.visit("/waiting")
	m.press("Look at all messages that wait")
	here("waiting-all", "The last returns")
	b.visit("/dead")
	m.press("Look at the letters")
	here("dead", fmt.Sprintf("%d causes of %d letters", shop.Causes+1, dead))
	b.visit(few)
	here("dead-filtered", "1 cause of 2 letters")
	m.press("0-11-0")
	here("letter", "Attempt 1", "tenant")
	b.visit("/dead?queue=mail")
	m.press(shop.Cause(0))
	here("cause", fmt.Sprintf("1 cause of %d letters", w.Dead["mail"][shop.Cause(0)]))
	b.visit("/waiting?queue=orders")
	m.press("Look at the messages")
	here("waiting", "the shop is closed")
	b.visit("/waiting?queue=keyed")
	m.press("Look at the keys")
	here("order", "blocked keys", "leads", "of at most 10")
	m.press(`Replay key "k 1"`)
	here("order-confirm", "Replay 1 dead letter of key", "Nothing has moved yet")
	b.visit("/stranded")
	m.press("Look at millpond.stranded")
	here("stranded", "Messages of millpond.stranded")
	b.visit(few)
	m.press("Replay 2 letters")
	here("confirm", "Nothing has moved yet")
	b.visit("/dead?queue=invoices")
	m.press("Replay")
	b.see("Nothing has moved yet")
	m.press("Replay")
	b.ended()
	here("action")
	b.visit("/actions")
	here("actions", "Replay of")
	b.visit("/verify")
	m.press("Verify")
	here("verify", "verified")
	b.visit("/doctor")
	here("doctor", "Examine")
	return all
}

// path returns the path and the query of the page.
func (b *tab) path() string {
	b.t.Helper()
	return strings.TrimPrefix(eval[string](b, "location.href"), b.site)
}

// violation is what axe-core finds.
type violation struct {
	ID, Help string
	Nodes    []struct{ HTML, FailureSummary string }
}

// inspect looks at a page in all ways.
func (b *tab) inspect(p named, axe string) {
	b.t.Helper()
	b.tolerate("status of 404")
	for _, l := range looks {
		b.dress(l)
		b.visit(p.path)
		b.inspectAs(p.name, l, axe)
	}
}

// inspectHere looks at the page that is open, which has no address.
func (b *tab) inspectHere(name, axe string) {
	b.t.Helper()
	for _, l := range looks {
		b.dress(l)
		b.inspectAs(name, l, axe)
	}
}

func (b *tab) inspectAs(name string, l look, axe string) {
	b.t.Helper()
	b.shot(name + "-" + l.name)
	assert.LessOrEqual(b.t, eval[int64](b, "document.documentElement.scrollWidth"), l.width,
		"%s is wider than %s", name, l.name)
	for _, v := range b.examine(axe) {
		assert.Fail(b.t, v.ID+": "+v.Help, "%s %s: %+v", name, l.name, v.Nodes)
	}
}

// examine runs axe-core: all rules of WCAG 2.2 AA, and the advice of its authors.
func (b *tab) examine(axe string) (found []violation) {
	b.t.Helper()
	eval[bool](b, axe+"; true")
	text := eval[string](b, `axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa",
		"wcag22aa", "best-practice"]}).then((r) => JSON.stringify(r.violations))`)
	require.NoError(b.t, json.Unmarshal([]byte(text), &found))
	return found
}
