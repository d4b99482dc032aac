package page_test

import (
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/cmd/millpond/page"
	"github.com/millpond-go/millpond/internal/testing/rig"
)

// orderedHouse is a broker with a service that handles queue orders in order, with Block.
type orderedHouse struct {
	*house
	*shop.Orders
	mended atomic.Bool
}

func newOrderedHouse(t testing.TB) *orderedHouse {
	t.Helper()
	h := &orderedHouse{house: &house{shop.Open(t)}}
	h.Orders = h.house.Orders(shop.InOrder(), shop.Bad(h.mended.Load))
	return h
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
	h.Keyed(hostile, "bad 1", "2", "3")
	a := v.looksAtKeys("blocked keys 1")
	require.NotContains(t, a.body, "<script>alert")
	require.NotContains(t, a.body, "\x1b")
	require.Contains(t, a.text(), "id-bad-1")
	require.NotContains(t, v.get("/").text(), "lost their queue")
	form := formIn(t, a.body, "/action/rehearse", "replay-key")
	h.mended.Store(true)
	a, confirm := v.rehearse(form)
	require.Contains(t, a.text(), "Replay 1 dead letter of key")
	require.Contains(t, a.text(), "messages of the key that wait behind it: 2")
	require.NotContains(t, a.body, "<script>alert")
	require.Empty(t, h.Handled(), "it was rehearsed alone")
	v.post("/action/start", confirm)
	require.Contains(t, v.ends(a.Request.URL.RequestURI()), "done: 1 of 1")
	h.AwaitBodies("bad 1", "2", "3")
	a = v.post("/action/rehearse", form)
	require.Equal(t, http.StatusConflict, a.StatusCode, "its letter was another one")

	h.mended.Store(false)
	h.Keyed("order 18", "bad 4", "5")
	form = formIn(t, v.looksAtKeys("order 18").body, "/action/rehearse", "release-key")
	stale := maps.Clone(form)
	stale.Set("mark", "1-1")
	require.Equal(t, http.StatusConflict, v.post("/action/rehearse", stale).StatusCode)
	stale.Set("key", "forged")
	require.Equal(t, http.StatusConflict, v.post("/action/rehearse", stale).StatusCode)
	a, end := v.act(form)
	require.Contains(t, a.text(), "Release key &#34;order 18&#34; of queue")
	require.Contains(t, end, "done: 1 of 1")
	h.AwaitBodies("bad 1", "2", "3", "5")
	rig.AwaitDepth(t, h.house.URL, "orders.dlq", 1)
	log, err := os.ReadFile(filepath.Join(folder, "audit.jsonl"))
	require.NoError(t, err)
	require.Contains(t, string(log), "order 18")
}

// Given masks, then a key is on no page, in no form and in no file, and can be released all the
// same. A person who may only read sees no button.
func TestMaskedKeys(t *testing.T) {
	t.Parallel()
	h := newOrderedHouse(t)
	folder := filepath.Join(t.TempDir(), "state")
	const secret = "ada@example.org"
	h.Keyed(secret, "bad 1", "2")
	masks := func(c *page.Config) { c.Masks = []string{"$..pin"} }
	reader := h.open(masks)
	seen := reader.looksAtKeys("blocked keys 1")
	require.NotContains(t, seen.body, "release-key")
	require.NotContains(t, seen.body, secret)
	rig.WaitFor(t, "the blocked key on the first page", func() bool {
		seen = reader.get("/")
		return seen.has(") is blocked by ")
	})
	require.Regexp(t, `key \(masked [0-9a-f]{6}\) is blocked by a dead letter, 1 behind it`,
		seen.text())
	require.NotContains(t, seen.body, secret)
	v := h.open(func(c *page.Config) {
		masks(c)
		trusting(c)
		c.StateFolder = folder
	})
	a := v.looksAtKeys("blocked keys 1")
	require.Contains(t, a.text(), "(masked ")
	require.NotContains(t, a.body, secret)
	a, end := v.act(formIn(t, a.body, "/action/rehearse", "release-key"))
	require.NotContains(t, a.body+end, secret)
	h.AwaitBodies("2")
	noted, err := filepath.Glob(filepath.Join(folder, "actions", "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, noted)
	for _, name := range append(noted, filepath.Join(folder, "audit.jsonl")) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Contains(t, string(text), "masked")
		require.NotContains(t, string(text), secret)
	}
	// Not even where all headers of the letter are shown. The header that the producer has set is
	// its own.
	rig.AwaitDepth(t, h.house.URL, "orders.dlq", 1)
	require.Contains(t, v.post("/dead/look?queue=orders", url.Values{}).text(), "of 1 letter")
	a = v.get("/letter?" + url.Values{
		"dead": {"orders.dlq"}, "id": {"id-bad-1"}, "position": {"1"},
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
