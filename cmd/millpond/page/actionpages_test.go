package page_test

import (
	"bytes"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/cmd/millpond/page"
	"github.com/millpond-go/millpond/internal/testing/rig"
)

// trusting lets everybody act.
func trusting(c *page.Config) {
	c.AllowActions = true
	c.Authorize = func(*http.Request) (string, page.Role) { return "local", page.RoleAct }
}

// acting opens a page on which actions are allowed.
func (h *house) acting(folder string) *visitor {
	h.T.Helper()
	return h.open(func(c *page.Config) {
		trusting(c)
		c.StateFolder = folder
	})
}

// dies publishes n dead letters of the queue orders.
func (h *house) dies(prefix, text string, n int) {
	h.T.Helper()
	var letters []amqp.Publishing
	for i := range n {
		id := fmt.Sprint(prefix, i)
		letters = append(letters,
			shop.Letter("orders", id, text, time.Now(), []byte(id), amqp.Table{"tenant": "a"}))
	}
	h.Post("orders.dlq", letters...)
	rig.AwaitDepth(h.T, h.URL, "orders.dlq", n)
}

var (
	inputs = regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)">`)
	texts  = regexp.MustCompile(`(?s)<textarea id="text" name="text"[^>]*>\n(.*?)</textarea>`)
)

// formIn returns the hidden fields of the first form of a page that goes to a path and has a text.
func formIn(t testing.TB, body, path, text string) url.Values {
	t.Helper()
	for form := range strings.SplitSeq(body, "<form ") {
		form, _, _ = strings.Cut(form, "</form>")
		if strings.Contains(form, `action="`+path+`"`) && strings.Contains(form, text) {
			values := url.Values{}
			for _, field := range inputs.FindAllStringSubmatch(form, -1) {
				values.Set(field[1], html.UnescapeString(field[2]))
			}
			return values
		}
	}
	require.Fail(t, "no form for "+path+" with "+text, body)
	return nil
}

// ends loads the page of an action until it has ended.
func (v *visitor) ends(path string) string {
	v.t.Helper()
	var body string
	rig.WaitFor(v.t, "the end of the action", func() bool {
		body = v.get(path).body
		return strings.Contains(body, "<dt>ended</dt>")
	})
	return body
}

// rehearse posts a form, and returns the page of the action with the form that confirms it.
func (v *visitor) rehearse(form url.Values) (a answer, confirm url.Values) {
	v.t.Helper()
	a = v.post("/action/rehearse", form)
	require.Equal(v.t, http.StatusOK, a.StatusCode, a.body)
	return a, formIn(v.t, a.body, "/action/start", "")
}

// act rehearses a form, confirms that and waits for the end.
func (v *visitor) act(form url.Values) (rehearsed answer, end string) {
	v.t.Helper()
	rehearsed, confirm := v.rehearse(form)
	v.post("/action/start", confirm)
	return rehearsed, v.ends(rehearsed.Request.URL.RequestURI())
}

// Given a browser without a script, then a replay is rehearsed, confirmed by the person who has
// seen it, seen by others, stopped, resumed, and there after a restart of the server.
func TestReplayByFormsAlone(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	const hostile = `refused <script>alert(1)</script>"'`
	h.dies("o-", hostile, 20)
	folder := filepath.Join(t.TempDir(), "state")
	v := h.acting(folder)
	colleague := &visitor{t: t, server: v.server, client: newBrowser(t)}

	a := v.post("/dead/look?"+url.Values{"queue": {"orders"}, "error": {hostile}}.Encode(),
		url.Values{})
	require.NotContains(t, a.body, "<script>alert")
	require.Contains(t, a.text(), "Replay 20 letters")
	form := formIn(t, a.body, "/action/rehearse", "")
	require.Equal(t, hostile, form.Get("error"))
	maps.Copy(form, url.Values{
		"kind": {"replay"}, "queue": {"orders"}, "canary": {"2"}, "settle": {"300ms"},
		"stop-at": {"50%"}, "rate": {"20"},
	})
	a, confirm := v.rehearse(form)
	require.Contains(t, a.body, "Replay 20 dead letters of queue")
	require.NotContains(t, a.body, "<script>alert")
	require.NotEmpty(t, confirm.Get("digest"))
	_, wrong := v.rehearse(form)
	wrong.Set("id", confirm.Get("id"))
	require.Equal(t, http.StatusConflict, v.post("/action/start", wrong).StatusCode)
	rig.AwaitDepth(t, h.URL, "orders.dlq", 20)

	events := colleague.stream()
	defer events.close()
	address := a.Request.URL.RequestURI()
	a = v.post("/action/start", confirm)
	require.Equal(t, http.StatusOK, a.StatusCode, a.body)
	require.Contains(t, a.body, `<noscript><meta http-equiv="refresh"`)
	require.Contains(t, a.body, `action="/action/stop"`)
	events.await("running", "Replay 20 dead letters")
	require.Contains(t, colleague.get("/").body, "Running: Replay 20 dead letters")
	body := v.ends(address)
	require.Contains(t, body, "started 20 = handled 20 + dead again 0 + waiting 0 + left 0")
	require.NotContains(t, body, "refresh")
	require.Contains(t, colleague.get("/actions").body, "done: 20 of 20")
	require.Contains(t, v.get("/dead?queue=orders").text(), "orders.dlq were moved since this look")

	// An action that the end of the server interrupts is shown by the next one.
	h.dies("p-", "refused", 60) // a minute's work
	_, confirm = v.rehearse(url.Values{
		"kind": {"replay"}, "queue": {"orders"}, "all": {"1"}, "rate": {"1"},
	})
	v.post("/action/start", confirm)
	v.post("/action/stop", url.Values{"id": {confirm.Get("id")}})
	require.Contains(t, v.ends("/action?id="+confirm.Get("id")), "Stopped by local")
	a = v.post("/action/resume", url.Values{"id": {confirm.Get("id")}})
	a = v.post("/action/start", formIn(t, a.body, "/action/start", ""))
	require.Equal(t, http.StatusOK, a.StatusCode, a.body)
	require.NoError(t, v.close())
	require.Contains(t, h.acting(folder).get("/").body, "Interrupted: Replay")
}

// A cause was named by its hash, and the way back from a rehearsal lost the typed values. Given a
// group of letters, then the chip and the confirmation say their error, the options are as they
// were left, and the letters are counted again with them.
func TestWayBackFromARehearsal(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.Send("orders", "is permanent 17", "is permanent 18", "waits")
	rig.AwaitDepth(t, h.URL, "orders.dlq", 2)
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	v := h.open(func(c *page.Config) {
		trusting(c)
		c.AuditFile = file
	})
	dead := v.post("/dead/look?queue=orders", url.Values{})
	require.NotContains(t, dead.body, `value="discard"`, "without a folder nothing is discarded")
	group := regexp.MustCompile(`group=(\w+)`).FindStringSubmatch(dead.body)[1]
	a := v.get("/dead?group=" + group + "&queue=orders")
	require.Contains(t, a.text(), "cause no customer # ×")
	form := formIn(t, a.body, "/action/rehearse", "")
	require.Equal(t, group, form.Get("group"))
	a = v.post("/action/rehearse?kind=replay&queue=orders", form)
	first := a.Request.URL.RequestURI()
	require.Contains(t, a.text(), `cause=&#34;no customer #&#34;; all are watched`)
	require.Contains(t, a.text(), "Replay of 2 letters of orders")
	require.NotContains(t, a.body, group)
	form = formIn(t, a.body, "/action/rehearse", "")
	maps.Copy(form, url.Values{"canary": {"1"}, "stop-at": {"5"}, "settle": {"soon"}})
	require.Equal(t, http.StatusBadRequest, v.post("/action/rehearse", form).StatusCode)
	require.Contains(t, v.get(first).body, `name="settle" value="soon"`)
	form.Set("settle", "300ms")
	a, confirm := v.rehearse(form)
	require.Contains(t, a.text(), `cause=&#34;no customer #&#34;; the first 1 are watched`)
	require.Contains(t, a.body, `name="settle" value="300ms"`)
	v.post("/action/start", confirm)
	end := v.ends(a.Request.URL.RequestURI())

	// It has stopped, because the first letter is dead again.
	look := regexp.MustCompile(`action="(/dead/look\?[^"]*)"`).FindStringSubmatch(end)[1]
	a = v.post(html.UnescapeString(look), url.Values{})
	require.Contains(t, a.text(), "1 cause of 1 letter")
	require.Contains(t, a.text(), "failed again after replay")
	entries, err := auditlog.Read(file)
	require.NoError(t, err)
	last := entries[len(entries)-1]
	require.Equal(t, []any{"local", "stopped", `cause="no customer #"`, 2, 1},
		[]any{last.Who, last.Event, last.Filter, last.Count, last.Done})
}

func TestEditByForms(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.dies("o-", "refused", 3)
	large := bytes.Repeat([]byte("<script>\x1b\xff"), 100_000) // the page keeps its beginning
	h.Post("orders.dlq", shop.Letter("orders", "large", "refused", time.Now(), large, nil))
	rig.AwaitDepth(t, h.URL, "orders.dlq", 4)
	folder := t.TempDir()
	v := h.acting(folder)
	file := v.post("/letter/download?dead=orders.dlq&id=large&position=4", url.Values{})
	require.Equal(t, string(large), file.body)
	require.Equal(t, "application/octet-stream", file.Header.Get("Content-Type"))
	shown := v.post("/letter/look?dead=orders.dlq&id=large&position=4", url.Values{})
	require.Contains(t, shown.text(), "more bytes not shown")
	require.Less(t, len(shown.body), 300<<10)
	a := v.post("/edit?dead=orders.dlq&id=o-1&position=2", url.Values{})
	require.Equal(t, http.StatusOK, a.StatusCode, a.body)
	require.Equal(t, "tenant string \"a\"\n\npayload as text:\no-1\n",
		html.UnescapeString(texts.FindStringSubmatch(a.body)[1]))
	form := formIn(t, a.body, "/action/rehearse", "")
	form.Set("text", "no payload")
	require.Equal(t, http.StatusBadRequest, v.post("/action/rehearse", form).StatusCode)
	require.Contains(t, v.get(a.Request.URL.RequestURI()).body, "no payload", "it is not lost")
	form.Set("text", "tenant string \"b\"\r\nnew int32 1\r\npayload as text:\r\nrepaired\r\n<b>\r\n")
	a, end := v.act(form)
	for _, want := range []string{
		"tenant string &#34;<del>[-a-]</del><ins>{&#43;b&#43;}</ins>&#34;", "{&#43;new int32 1&#43;}",
		"<del>[-o-1-]</del>", "<ins>{&#43;repaired&#43;}</ins>", "<ins>{&#43;&lt;b&gt;&#43;}</ins>",
	} {
		require.Contains(t, a.body, want)
	}
	require.Contains(t, end, "done: 1 of 1")
	rig.AwaitDepth(t, h.URL, "orders.dlq", 3)
	rig.AwaitDepth(t, h.URL, "orders.dlq.originals", 1)
	require.Equal(t, http.StatusConflict, v.post("/action/rehearse", form).StatusCode, "it has gone")
	noted, err := os.ReadFile(
		filepath.Join(folder, "actions", a.Request.URL.Query().Get("id")+".json"))
	require.NoError(t, err)
	require.NotContains(t, string(noted), "repaired")
}

// A form that changes a queue needs the flag, the role and the token of the page.
func TestActionsNeedTheFlagTheRoleAndTheToken(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.dies("o-", "refused", 1)
	form := url.Values{"kind": {"replay"}, "queue": {"orders"}, "all": {"1"}}
	locked := h.open(nil)
	require.Equal(t, http.StatusNotFound, locked.post("/action/rehearse", form).StatusCode)

	v := h.acting(t.TempDir())
	for name, c := range map[string]struct {
		change func(url.Values)
		want   int
	}{
		"another token": {func(f url.Values) { f.Set("form", "x") }, http.StatusForbidden},
		"no choice":     {func(f url.Values) { f.Del("all") }, http.StatusBadRequest},
		"two choices":   {func(f url.Values) { f.Set("error", "x") }, http.StatusBadRequest},
		"no ticked row": {func(f url.Values) { f.Set("picked", "id") }, http.StatusBadRequest},
		"no queue":      {func(f url.Values) { f.Del("queue") }, http.StatusBadRequest},
		"no such queue": {func(f url.Values) { f.Set("queue", "nowhere") }, http.StatusNotFound},
		"another kind":  {func(f url.Values) { f.Set("kind", "undo") }, http.StatusBadRequest},
		"no number":     {func(f url.Values) { f.Set("rate", "quick") }, http.StatusBadRequest},
		"any queue":     {func(f url.Values) { f.Set("kind", "return") }, http.StatusNotFound},
	} {
		values := maps.Clone(form)
		values.Del("form")
		c.change(values)
		a := v.post("/action/rehearse", values)
		require.Equal(t, c.want, a.StatusCode, "%s: %s", name, a.body)
	}
	h.Post("orders.dlq", shop.Letter("orders", "p", "no stock", time.Now(), []byte("p"), nil))
	rig.AwaitDepth(t, h.URL, "orders.dlq", 2)
	groups := regexp.MustCompile(`name="group" value="(\w+)"`).FindAllStringSubmatch(
		v.post("/dead/look?queue=orders", url.Values{}).body, -1)
	both, _ := v.rehearse(url.Values{
		"kind": {"replay"}, "queue": {"orders"}, "picked": {"group"},
		"group": {groups[0][1], groups[1][1]},
	})
	require.Contains(t, both.text(), `cause=&#34;refused or no stock&#34;`)
	require.Contains(t, both.text(), "2 of 2")
	reader := h.reading()
	const button = `action="/action/rehearse"`
	require.NotContains(t, reader.post("/dead/look?queue=orders", url.Values{}).body, button)
	require.Contains(t, v.post("/dead/look?queue=orders", url.Values{}).body, button)
	// The doctor declares queues.
	require.NotContains(t, reader.get("/doctor").body, "/doctor/look")
	require.Contains(t, v.get("/doctor").body, "/doctor/look")
	for _, path := range []string{"/action/rehearse", "/doctor/look"} {
		form.Del("form")
		a := reader.post(path, form)
		require.Equal(t, http.StatusForbidden, a.StatusCode, path)
		require.Contains(t, a.body, "may only read")
	}
	require.Equal(t, http.StatusForbidden, locked.post("/doctor/look", url.Values{}).StatusCode)
	rig.AwaitDepth(t, h.URL, "orders.dlq", 2)
}

// reading opens a page on which this person may only read, and others may act.
func (h *house) reading() *visitor {
	h.T.Helper()
	v := h.open(func(c *page.Config) {
		c.AllowActions = true
		c.Accounts = []page.Account{{Name: "eve", Secret: readToken, Token: true, Role: page.RoleRead}}
	})
	require.Equal(h.T, http.StatusOK, v.login(readToken))
	return v
}

// close ends the server's page, as its process does.
func (v *visitor) close() error {
	handler, _ := v.server.Config.Handler.(*page.Handler)
	return handler.Close()
}
