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

// quick is a service that gives up soon.
var quick = rig.Config{Policy: backoff.List{200 * time.Millisecond, 400 * time.Millisecond}}

// newIncident starts a service and the page.
func newIncident(
	t *testing.T, y *yard, c rig.Config, handler func(body string) error,
) *incident {
	t.Helper()
	h := y.newHouse(t)
	i := &incident{h: h, t: t, Orders: h.Orders(c, handler)}
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

// most is how many clicks an incident takes from the first page to its end.
const most = 6

// begin goes to the first page, where the clicks count from.
func (i *incident) begin() {
	i.t.Helper()
	i.visit("/")
	i.see("Queues")
	i.clicks = 0
}

// look goes from the first page to the letters of the queue.
func (i *incident) look(causes string) {
	i.t.Helper()
	i.begin()
	i.press("orders")
	i.press("Look")
	i.see(causes)
}

// waits goes from the first page to the messages that wait for the queue, once they were counted.
func (i *incident) waits(look string) {
	i.t.Helper()
	i.begin()
	i.await("parseInt(" + cell("orders", "Waiting") + ") > 0")
	i.press("Waiting")
	i.press("orders")
	i.press(look)
}

// confirm requires that the page names the messages, then does it.
func (i *incident) confirm(words string) {
	i.t.Helper()
	i.see("Nothing has moved yet", words)
	i.await(`document.querySelector("form[action$='/action/start'] button")`)
	i.shot("confirm")
	i.press(eval[string](i.tab,
		`document.querySelector("form[action$='/action/start'] button").innerText`))
	i.ended()
	i.shot("done")
	require.LessOrEqual(i.t, i.clicks, most, "clicks")
}

// A deploy breaks the parsing of every order; the next one mends it.
func badDeploy(t *testing.T, y *yard) {
	var broken atomic.Bool
	broken.Store(true)
	i := newIncident(t, y, quick, func(string) error {
		if broken.Load() {
			return fmt.Errorf("order 17: %w", shop.ErrBroken)
		}
		return nil
	})
	i.Place(0, 40)
	i.AwaitDead(40)
	i.look("1 cause of 40 letters")
	i.keep("page-bad-deploy.png")
	broken.Store(false) // rolled back
	i.press("Replay 40 of orders: order #: cannot parse total")
	i.confirm("Replay 40 letters")
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
	i := newIncident(t, y, quick, func(string) error {
		tries.Add(1)
		if down.Load() {
			return errors.New("dial tcp 10.0.0.7:443: connection refused")
		}
		return nil
	})
	i.Place(0, 30)
	i.AwaitDead(30)
	before := tries.Load()
	i.look("1 cause of 30 letters")
	i.press("Replay 30 letters")
	i.confirm("Replay 30 letters")
	i.see("dead again")
	i.keep("page-outage.png")
	i.AwaitDead(30)
	require.Equal(t, before+9, tries.Load(), "three letters were tried, three times each")
	down.Store(false)
	i.press("Rehearse the rest")
	i.confirm("Replay 27 letters")
	i.AwaitHandled(27)
	i.press("All actions")
	i.press("Replay of 30 letters")
	i.press("Show the letters that are dead again")
	i.see("1 cause of 3 letters", "failed again after replay")
	i.clicks = 0
	i.press("Replay 3 letters")
	i.see("Nothing has moved yet")
	i.press("Change how it goes")
	i.fill("Messages a second", "50")
	i.press("Count again with these")
	i.confirm("; 50 a second")
	i.AwaitHandled(30)
	i.AwaitDead(0)
}

// One order can never be handled. It is looked at, mended and replayed; another is thrown away, and
// the server keeps it in a file.
func poison(t *testing.T, y *yard) {
	i := newIncident(t, y, quick, func(body string) error {
		if strings.Contains(body, `"order":3}`) || strings.Contains(body, `"order":5}`) {
			panic("index out of range")
		}
		return nil
	})
	i.hands = keyboard{i.tab}
	i.Place(0, 10)
	i.AwaitHandled(8)
	i.AwaitDead(2)
	i.look("1 cause of 2 letters")
	i.press("order-3")
	i.see("index out of range", `"order": 3`)
	i.keep("page-poison.png")
	i.press("Edit …")
	i.fill("Headers and payload", "payload as json:\n"+`{"order":3,"lines":[]}`)
	i.press("Rehearse the edit")
	i.see("The difference", `{+  "lines": []+}`)
	eval[bool](i.tab, "(history.back(), true)") // nothing that was typed is lost
	i.await(`document.querySelector("textarea")?.value.includes('"lines":[]')`)
	i.clicks--
	i.press("Rehearse the edit")
	i.confirm("order-3")
	i.AwaitHandled(9)
	i.AwaitDead(1)
	i.look("1 cause of 1 letter")
	i.hold("Tick order-5")
	i.press("Discard 1 ticked letter")
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
	i.begin()
	i.press("Stranded")
	i.press("Look at far.stranded")
	i.see("The way is free again")
	i.keep("page-stranded.png")
	i.press("Return 5 for parcels: the shop is closed")
	i.confirm("for=parcels")
	i.see("Return of 5 stranded messages of far.stranded")
	i.AwaitHandled(5)
	i.begin()
	i.press("Stranded")
	i.press("Look at far.stranded")
	i.press("Return 2 for loyalty: no such customer")
	i.see("None of the 2 messages can be moved so") // their queue has another name now
	i.fill("To another queue", "parcels")
	i.press("Count again with these")
	i.confirm("they go to queue")
	rig.AwaitDepth(t, h.URL, "far.stranded", 1)
}

// The supplier is back, and orders wait for an hour: they go on now. One of them is to be a dead
// letter.
func longWait(t *testing.T, y *yard) {
	var down atomic.Bool
	down.Store(true)
	i := newIncident(t, y, rig.Config{Policy: backoff.List{time.Hour}}, func(string) error {
		if down.Load() {
			return errors.New("the supplier is closed")
		}
		return nil
	})
	i.Place(0, 4)
	rig.AwaitDepth(t, i.h.URL, "orders.wait.1h", 4)
	for _, press := range []string{"Cancel order-2", "Release all messages"} {
		i.waits("Look")
		i.see("the supplier is closed", "in 59 min")
		down.Store(false)
		i.press(press)
		i.confirm("waiting message")
	}
	i.AwaitDead(1)
	i.AwaitHandled(3)
}

// A letter blocks its key. It is mended by a deploy, and goes on before those that wait behind it.
func blockedKey(t *testing.T, y *yard) {
	var mended atomic.Bool
	i := newIncident(t, y, shop.InOrder(), shop.Bad(mended.Load))
	i.Keyed("k 1", "bad 1", "2", "3")
	i.AwaitDead(1)
	i.waits("Look at the keys")
	i.see("blocked keys")
	mended.Store(true)
	i.press(`Replay key "k 1"`)
	i.confirm(`Replay 1 letter of key "k 1"`)
	i.AwaitBodies("bad 1", "2", "3")
}

// A service is down without a brake. Its messages stay in the queue until it starts again.
func deadConsumer(t *testing.T, y *yard) {
	i := newIncident(t, y, quick, nil)
	i.h.Services["orders"].Stop()
	i.Place(0, 4)
	i.begin()
	i.see("orders: no consumer for 4 ready messages")
	i.press("Its last hour")
	i.see("4 ready, consumers: 0")
	i.Start()
	i.AwaitHandled(4)
	i.press("Now")
	i.see("Nothing is wrong.")
	require.LessOrEqual(t, i.clicks, most, "clicks")
}

// The warehouse counts its goods: for an hour no process takes an order.
func stopConsuming(t *testing.T, y *yard) {
	h := y.newHouse(t)
	i := &incident{h: h, t: t}
	rig.StartBraked(t, rig.Braked{URL: h.URL, Queue: "orders", Name: "goods", Handle: rig.Succeed})
	i.open()
	i.begin()
	i.press("Brakes")
	i.press("Stop")
	i.see("stopped by hand", "in 59 min")
	i.press("Now")
	i.see("brake goods: stopped by hand by")
	i.press("Start")
	i.see("open")
	require.LessOrEqual(t, i.clicks, most, "clicks, to the end of the stop")
}
