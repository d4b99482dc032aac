package page_test

import (
	"html"
	"net/http"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
	"github.com/millpond-go/millpond/internal/testing/rig"
)

// Given a service with a brake and services without one, then a person stops it for an hour and
// starts it by forms, all see that, and the audit log has who did it.
func TestBrakesByForms(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	const name = "mail of the shop"
	rig.StartBraked(t, rig.Braked{URL: h.URL, Queue: "braked", Name: name, Handle: rig.Succeed})
	folder := t.TempDir()
	v := h.acting(folder)
	rig.WaitFor(t, "the brake and its queue", func() bool {
		return v.get("/brakes").has(name + " open braked")
	})
	require.Regexp(t, `These queues cannot be stopped.*invoices , mail , orders`,
		v.get("/brakes").text())
	unknown := v.post("/brakes/stop", url.Values{"name": {"mial"}, "for": {"1h"}})
	require.Equal(t, http.StatusNotFound, unknown.StatusCode)
	long := v.post("/brakes/stop", url.Values{"name": {name}, "for": {"25h"}})
	require.Equal(t, http.StatusBadRequest, long.StatusCode)
	form := url.Values{"name": {name}, "for": {"1h"}, "cause": {"it <moves>"}}
	stopped := v.post("/brakes/stop", form).text()
	require.Regexp(t, name+` stopped by hand Start consuming \d+ s ago in 59 min local `+
		`it &lt;moves&gt; braked`, stopped)
	now := v.get("/").text()
	require.Regexp(t, `brake `+name+` : stopped by hand by local, ends .*: it &lt;moves&gt;.* `+
		`braked .*Start consuming`, now)
	require.Contains(t, v.post("/brakes/start?name="+url.QueryEscape(name), url.Values{}).text(),
		name+" open")
	entries, err := auditlog.Read(filepath.Join(folder, "audit.jsonl"))
	require.NoError(t, err)
	require.Len(t, entries, 6) // each is noted when it begins and when it ends
	refused, began, ended := entries[1], entries[2], entries[5]
	require.Equal(t, []string{"failed", "started", "local", "done"},
		[]string{refused.Event, began.Event, began.Who, ended.Event})
	require.Contains(t, refused.Error, "must be 1s to 24h")
	require.Contains(t, began.What, "brake stop 'mail of the shop' --for '1h0m0s' --cause 'it")
	require.Contains(t, ended.What, "brake start 'mail of the shop'; it was stopped by local since 2")
	require.Regexp(t, "brake start 'mail of the shop'; it was stopped by local since .* done local",
		html.UnescapeString(v.get("/actions").text()))
	reader := h.reading()
	require.NotContains(t, reader.get("/brakes").body, ">Stop consuming<")
	require.Equal(t, http.StatusForbidden, reader.post("/brakes/stop", form).StatusCode)
}
