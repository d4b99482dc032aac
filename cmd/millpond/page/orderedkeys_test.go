package page_test

import (
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/cmd/millpond/page"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology/inorder"
)

// orderedHouse is a broker with a service that handles queue orders in order, with Block.
type orderedHouse struct {
	*house
	mended atomic.Bool

	mu   sync.Mutex
	done []string
}

func newOrderedHouse(t testing.TB) *orderedHouse {
	t.Helper()
	node, api := testbroker.Managed(t, "")
	h := &orderedHouse{house: &house{t: t, url: node.URL(), api: api}}
	rig.Start(t, rig.Config{
		URL: h.url, Queue: "orders", Keep: true,
		Configure: rig.WithQueue(amqp.Table{
			"x-queue-type": "quorum", "x-single-active-consumer": true,
		}),
		Strategy: inorder.Strategy{Block: true, KeyBy: func(msg *message.Message) string {
			return msg.Metadata.Get("key")
		}},
		Policy: backoff.None{},
		Handle: func(msg *message.Message) error {
			body := string(msg.Payload)
			if strings.HasPrefix(body, "bad") && !h.mended.Load() {
				return errors.New("no such customer")
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			h.done = append(h.done, body)
			return nil
		},
	})
	return h
}

func (h *orderedHouse) handled() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.done)
}

func (h *orderedHouse) awaitHandled(bodies ...string) {
	h.t.Helper()
	rig.WaitFor(h.t, "the messages to be handled", func() bool {
		return len(h.handled()) == len(bodies)
	})
	require.Equal(h.t, bodies, h.handled())
}

// sends publishes messages of a key.
func (h *orderedHouse) sends(key string, bodies ...string) {
	h.t.Helper()
	for _, body := range bodies {
		m := rig.Message(body)
		m.MessageId, m.Headers = "id-"+body, amqp.Table{"key": key}
		rig.Publish(h.t, h.url, "", "orders", m)
	}
}

// looksAtKeys looks until the page shows a text.
func (v *visitor) looksAtKeys(text string) answer {
	v.t.Helper()
	var got answer
	rig.WaitFor(v.t, text+" on the page", func() bool {
		got = v.post("/order/look?queue=orders", url.Values{})
		return got.has(text)
	})
	return got
}

// Given a blocked key, then a person releases it, or replays it, by forms alone, after a rehearsal.
func TestKeysByForms(t *testing.T) {
	t.Parallel()
	h := newOrderedHouse(t)
	folder := filepath.Join(t.TempDir(), "state")
	v := h.acting(folder)
	rig.WaitFor(t, "the queue", func() bool {
		return v.get("/waiting?queue=orders").StatusCode == http.StatusOK
	})
	require.Contains(t, v.looksAtKeys("No key waits").text(), "of at most 10 000")
	const hostile = `<script>alert(1)</script>"'` + "\x1b[2J"
	h.sends(hostile, "bad 1", "2", "3")
	a := v.looksAtKeys("blocked keys 1")
	require.NotContains(t, a.body, "<script>alert")
	require.NotContains(t, a.body, "\x1b")
	require.Contains(t, a.text(), "id-bad 1")
	require.NotContains(t, v.get("/").text(), "lost their queue")
	form := keyForm(t, a.body, "replay-key")
	h.mended.Store(true)
	a = v.post("/action/rehearse", form)
	require.Equal(t, http.StatusOK, a.StatusCode, a.body)
	require.Contains(t, a.text(), "Replay 1 dead letter of key")
	require.Contains(t, a.text(), "messages of the key that wait behind it: 2")
	require.NotContains(t, a.body, "<script>alert")
	require.Empty(t, h.handled(), "it was rehearsed alone")
	address := a.Request.URL.RequestURI()
	v.post("/action/start", formIn(t, a.body, "/action/start"))
	require.Contains(t, v.ends(address), "done: 1 of 1")
	h.awaitHandled("bad 1", "2", "3")
	a = v.post("/action/rehearse", form)
	require.Equal(t, http.StatusConflict, a.StatusCode, "its letter was another one")

	h.mended.Store(false)
	h.sends("order 18", "bad 4", "5")
	form = keyForm(t, v.looksAtKeys("order 18").body, "release-key")
	stale := url.Values{
		"kind": {"release-key"}, "queue": {"orders"}, "key": form["key"], "mark": {"1-1"},
	}
	require.Equal(t, http.StatusConflict, v.post("/action/rehearse", stale).StatusCode)
	stale.Set("key", "forged")
	require.Equal(t, http.StatusConflict, v.post("/action/rehearse", stale).StatusCode)
	a = v.post("/action/rehearse", form)
	require.Contains(t, a.text(), "Release key &#34;order 18&#34; of queue")
	address = a.Request.URL.RequestURI()
	v.post("/action/start", formIn(t, a.body, "/action/start"))
	require.Contains(t, v.ends(address), "done: 1 of 1")
	h.awaitHandled("bad 1", "2", "3", "5")
	rig.AwaitDepth(t, h.url, "orders.dlq", 1)
	log, err := os.ReadFile(filepath.Join(folder, "audit.jsonl"))
	require.NoError(t, err)
	require.Contains(t, string(log), "order 18")

	// A letter that blocks is edited in its place.
	h.sends("order 19", "bad 6", "7")
	v.looksAtKeys("order 19")
	dead := v.post("/dead/look?queue=orders", url.Values{})
	require.Contains(t, dead.text(), "of 2 letters")
	a = v.post("/edit", url.Values{"page": {"/letter?" + url.Values{
		"dead": {"orders.dlq"}, "id": {"id-bad 6"}, "position": {"2"},
	}.Encode()}})
	require.Equal(t, http.StatusOK, a.StatusCode, a.body)
	form = formIn(t, a.body, "/action/rehearse")
	form.Set("body", "mended 6")
	a = v.post("/action/rehearse", form)
	require.Equal(t, http.StatusOK, a.StatusCode, a.body)
	address = a.Request.URL.RequestURI()
	v.post("/action/start", formIn(t, a.body, "/action/start"))
	require.Contains(t, v.ends(address), "done: 1 of 1")
	h.awaitHandled("bad 1", "2", "3", "5", "mended 6", "7")
}

// keyForm returns the fields of the form of a key.
func keyForm(t testing.TB, body, kind string) url.Values {
	t.Helper()
	for _, part := range strings.Split(body, "<form ")[1:] {
		part = "<form " + part
		if strings.Contains(part, `name="kind" value="`+kind+`"`) {
			return formIn(t, part, "/action/rehearse")
		}
	}
	require.Fail(t, "no form "+kind, body)
	return nil
}

// Given masks, then a key is on no page, in no form and in no file, and can be released all the
// same. A person who may only read sees no button.
func TestMaskedKeys(t *testing.T) {
	t.Parallel()
	h := newOrderedHouse(t)
	folder := filepath.Join(t.TempDir(), "state")
	const secret = "ada@example.org"
	h.sends(secret, "bad 1", "2")
	masks := func(c *page.Config) { c.Masks = []string{"$..pin"} }
	reader := h.open(masks)
	seen := reader.looksAtKeys("blocked keys 1")
	require.NotContains(t, seen.body, "release-key")
	require.NotContains(t, seen.body, secret)
	v := h.open(func(c *page.Config) {
		masks(c)
		c.AllowActions, c.StateFolder = true, folder
	})
	a := v.looksAtKeys("blocked keys 1")
	require.Contains(t, a.text(), "(masked ")
	require.NotContains(t, a.body, secret)
	a = v.post("/action/rehearse", keyForm(t, a.body, "release-key"))
	require.Equal(t, http.StatusOK, a.StatusCode, a.body)
	require.NotContains(t, a.body, secret)
	address := a.Request.URL.RequestURI()
	v.post("/action/start", formIn(t, a.body, "/action/start"))
	require.NotContains(t, v.ends(address), secret)
	h.awaitHandled("2")
	for _, name := range []string{"audit.jsonl", "actions.jsonl"} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err)
		require.Contains(t, string(text), "masked")
		require.NotContains(t, string(text), secret)
	}
	// Not even where all headers of the letter are shown. The header that the producer has set is
	// its own.
	rig.AwaitDepth(t, h.url, "orders.dlq", 1)
	require.Contains(t, v.post("/dead/look?queue=orders", url.Values{}).text(), "of 1 letter")
	a = v.get("/letter?" + url.Values{
		"dead": {"orders.dlq"}, "id": {"id-bad 1"}, "position": {"1"},
	}.Encode())
	require.Equal(t, http.StatusOK, a.StatusCode, a.body)
	require.Regexp(t, `millpond-dead-key string \(masked [0-9a-f]{6}\)`, a.text())
	require.Equal(t, 1, strings.Count(a.body, secret))
	probe := url.Values{"header": {"millpond-dead-key=" + secret}}.Encode()
	require.Equal(t, http.StatusBadRequest,
		v.post("/dead/look?queue=orders&"+probe, url.Values{}).StatusCode)
	require.Equal(t, http.StatusBadRequest, v.post("/action/rehearse", url.Values{
		"kind": {"replay"}, "queue": {"orders"}, "header": {"millpond-dead-key=" + secret},
	}).StatusCode)
}
