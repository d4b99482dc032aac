package page_test

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
	for form, want := range map[string]int{
		"name=mial&for=1h": http.StatusNotFound, "name=" + url.QueryEscape(name) + "&for=25h": 400,
	} {
		values, err := url.ParseQuery(form)
		require.NoError(t, err)
		require.Equal(t, want, v.post("/brakes/stop", values).StatusCode, form)
	}
	form := url.Values{"name": {name}, "for": {"1h"}, "cause": {"it <moves>"}}
	stopped := v.post("/brakes/stop", form).text()
	require.Regexp(t, name+` stopped by hand Start consuming \d+ s ago in 59 min local `+
		`it &lt;moves&gt; braked`, stopped)
	now := v.get("/").text()
	require.Regexp(t, `brake `+name+` : stopped by hand by local, ends .*: it &lt;moves&gt;.* `+
		`braked .*Start consuming`, now)
	require.Contains(t, v.post("/brakes/start?name="+url.QueryEscape(name), url.Values{}).text(),
		name+" open")
	log, err := os.ReadFile(filepath.Join(folder, "audit.jsonl"))
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	require.Len(t, lines, 6) // each is noted when it begins and when it ends
	for n, want := range map[int][]string{
		1: {`"failed"`, `must be 1s to 24h`},
		2: {`"started"`, `"who":"local"`, `brake stop 'mail of the shop' --for '1h0m0s' --cause 'it`},
		5: {`"done"`, `brake start 'mail of the shop'; it was stopped by local since 2`},
	} {
		for _, text := range want {
			require.Contains(t, lines[n], text)
		}
	}
	reader := h.reading()
	require.NotContains(t, reader.get("/brakes").body, ">Stop consuming<")
	require.Equal(t, http.StatusForbidden, reader.post("/brakes/stop", form).StatusCode)
}
