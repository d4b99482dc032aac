package pagetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware/header"
)

// incident is a service of orders in trouble, and the hands of the engineer on call.
type incident struct {
	*shop.Orders
	hands
	*tab
	h *house
	t *testing.T
}

// newIncident starts a service and the page.
func newIncident(t *testing.T, y *yard, handler func(body string) error) *incident {
	t.Helper()
	h := y.newHouse(t)
	i := &incident{h: h, t: t, Orders: h.Orders(rig.Config{
		Policy: backoff.List{200 * time.Millisecond, 400 * time.Millisecond},
	}, handler)}
	i.open()
	return i
}

// open opens the page.
func (i *incident) open() {
	i.t.Helper()
	i.h.act()
	i.tab = i.h.tab()
	i.hands = mouse{i.tab}
}

// look goes from the first page to the letters of a cause.
func (i *incident) look(cause, causes string) {
	i.t.Helper()
	i.visit("/")
	i.press("orders")
	i.press("Look")
	i.see(causes)
	i.press(cause)
	i.await(`location.search.includes("group=")`)
}

// replay replays the chosen letters, confirms that, and waits for the end.
func (i *incident) replay(words string, fields ...string) {
	i.t.Helper()
	i.press("Act on these messages")
	for n := 0; n < len(fields); n += 2 {
		i.fill(fields[n], fields[n+1])
	}
	i.press("Rehearse the replay")
	i.confirm(words)
}

// confirm requires that the page names the messages, then does it.
func (i *incident) confirm(words string) {
	i.t.Helper()
	i.see("Nothing has moved yet", words)
	i.shot("confirm")
	i.press(eval[string](i.tab,
		`document.querySelector("form[action$='/action/start'] button").innerText`))
	i.ended()
	i.shot("done")
}

// A deploy breaks the parsing of every order; the next one mends it.
func badDeploy(t *testing.T, y *yard) {
	var broken atomic.Bool
	broken.Store(true)
	i := newIncident(t, y, func(string) error {
		if broken.Load() {
			return fmt.Errorf("order 17: %w", shop.ErrBroken)
		}
		return nil
	})
	i.Place(0, 40)
	i.AwaitDead(40)
	i.look("order #: cannot parse total", "1 cause of 40 letters")
	i.shot("cause")
	i.keep("page-bad-deploy.png")
	broken.Store(false) // rolled back
	i.replay("40", "First letters to watch", "2", "Handled if seen nowhere for", "1s")
	i.AwaitHandled(40)
	i.AwaitDead(0)
	i.see("40 of 40")
}

// The warehouse is down for longer than the retries last. The first letters are dead again, so the
// replay stops by itself and leaves the others alone until the warehouse is up.
func outage(t *testing.T, y *yard) {
	var down atomic.Bool
	down.Store(true)
	var tries atomic.Int64
	i := newIncident(t, y, func(string) error {
		tries.Add(1)
		if down.Load() {
			return errors.New("dial tcp 10.0.0.7:443: connection refused")
		}
		return nil
	})
	i.Place(0, 30)
	i.AwaitDead(30)
	before := tries.Load()
	i.look("dial tcp", "1 cause of 30 letters")
	i.replay("30", "First letters to watch", "2", "Handled if seen nowhere for", "1s")
	i.see("dead again")
	i.keep("page-outage.png")
	i.AwaitDead(30)
	require.Equal(t, before+6, tries.Load(), "two letters were tried, three times each")
	action := i.path()
	i.press("Show the letters that are dead again")
	i.see("1 cause of 2 letters")
	i.visit(action)
	down.Store(false)
	i.press("Rehearse the rest")
	i.confirm("28")
	i.AwaitHandled(28)
	i.look("dial tcp", "1 cause of 2 letters")
	i.see("failed again after replay")
	i.replay("2", "Handled if seen nowhere for", "1s")
	i.AwaitHandled(30)
	i.AwaitDead(0)
}

// One order can never be handled. It is looked at, mended and replayed; another is thrown away, and
// the server keeps it in a file.
func poison(t *testing.T, y *yard) {
	i := newIncident(t, y, func(body string) error {
		if strings.Contains(body, `"order":3}`) || strings.Contains(body, `"order":5}`) {
			panic("index out of range")
		}
		return nil
	})
	i.hands = keyboard{i.tab}
	i.Place(0, 10)
	i.AwaitHandled(8)
	i.AwaitDead(2)
	i.look("panic", "1 cause of 2 letters")
	i.press("order-3")
	i.see("index out of range", `"order": 3`)
	i.shot("letter")
	i.keep("page-poison.png")
	i.press("Edit …")
	i.fill("Headers and payload", "payload as json:\n"+`{"order":3,"lines":[]}`)
	i.press("Rehearse the edit")
	i.see("The difference", `{+  "lines": []+}`)
	eval[bool](i.tab, "(history.back(), true)") // nothing that was typed is lost
	i.await(`document.querySelector("textarea")?.value.includes('"lines":[]')`)
	i.press("Rehearse the edit")
	i.confirm("order-3")
	i.AwaitHandled(9)
	i.AwaitDead(1)
	i.visit("/dead?queue=orders")
	i.press("Look again")
	i.see("1 cause of 1 letter")
	i.press("order-5")
	i.press("Replay or discard …")
	i.press("Rehearse the discard")
	i.confirm("order-5")
	i.AwaitDead(0)
	kept, err := filepath.Glob(filepath.Join(i.h.state, "discarded", "*.jsonl"))
	require.NoError(t, err)
	require.Len(t, kept, 1)
	data, err := os.ReadFile(kept[0])
	require.NoError(t, err)
	require.Contains(t, string(data), "order-5")
}

// A queue is deleted while messages wait for it. It is declared again, and they return: not those
// of another service that are stranded with them, nor those with another cause.
func stranded(t *testing.T, y *yard) {
	h := y.newHouse(t)
	h.strand(5)
	for i, other := range []string{"loyalty", "loyalty", "parcels"} {
		m := rig.Message(fmt.Sprint("other ", i))
		h.Post("far.stranded", shop.Waiting(other, header.RetryState{
			Failures: 1, Error: "no such customer",
		}, m))
	}
	i := &incident{h: h, t: t, Orders: &shop.Orders{House: h.House}}
	again := parcels()
	again.Handle = i.Note(nil)
	h.Serve(again)
	i.open()
	i.hands = keyboard{i.tab}
	i.visit("/")
	i.press("See Stranded")
	i.press("Look at far.stranded")
	i.see("The way is free again")
	i.shot("stranded")
	i.keep("page-stranded.png")
	i.press("Act on these messages")
	i.fill("Only for queue", "loyalty")
	i.press("Choose")
	i.see("for=loyalty")
	i.visit("/stranded?queue=far.stranded")
	i.press("Act on these … for parcels: the shop is closed")
	i.see("for=parcels")
	i.press("Rehearse the return")
	i.confirm("5 of 8")
	i.AwaitHandled(5)
	rig.AwaitDepth(t, h.URL, "far.stranded", 3)
}
