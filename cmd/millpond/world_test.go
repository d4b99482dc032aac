package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/cmd/millpond/page"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/operate"
)

// decoded reads all values of a type that a command has printed.
func decoded[T any](t *testing.T, text string) (all []T) {
	t.Helper()
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var one T
		err := d.Decode(&one)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err, text)
		all = append(all, one)
	}
}

// Given a world of twelve services, then each number that the tool and the page show is the number
// of messages that were put in. `make world` builds it and serves the page until it is interrupted.
func TestWorld(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	w := shop.NewWorld(h.House)
	if os.Getenv("MILLPOND_WORLD") != "" {
		t.Logf("AMQP %s, management %s, host %s", h.URL, h.API, h.url)
		interrupted := make(chan os.Signal, 1)
		signal.Notify(interrupted, os.Interrupt)
		<-interrupted
	}
	ask := func(args ...string) string {
		t.Helper()
		o := tool(t, h.url, "", append([]string{"--url", h.url, "--json"}, args...)...)
		require.Zero(t, o.code, "%v: %s", args, o.err)
		return o.out
	}
	type queue struct {
		Name  string
		Total operate.Count
	}
	type status struct {
		Queues            []overview.Row
		Stranded, Orphans []queue
		Brakes            []header.BrakeState
	}
	waiting := func(queue string) int {
		if queue == "keyed" {
			return w.Behind + 1 // and the mark of the letter that blocks its key
		}
		return w.WaitingOf(queue)
	}
	var s status
	rig.WaitFor(t, "the broker to have counted", func() bool {
		text := strings.ReplaceAll(ask("status"), `"waiting_shared"`, `"WaitingShared"`)
		s = decoded[status](t, text)[0]
		for _, r := range s.Queues {
			if r.Waiting.N != waiting(r.Queue) || r.Dead.N != w.DeadOf(r.Queue) {
				t.Logf("%s: %v waiting of %d, %v dead of %d", r.Queue, r.Waiting, waiting(r.Queue), r.Dead,
					w.DeadOf(r.Queue))
				return false
			}
		}
		return s.Stranded[0].Total.N >= 0 && len(s.Orphans) > 0 && s.Orphans[0].Total.N >= 0
	})
	require.Len(t, s.Queues, len(w.Queues))
	for _, r := range s.Queues {
		require.Contains(t, w.Queues, r.Queue)
		require.Equal(t, 1, r.Consumers.N, r.Queue)
		require.Equal(t, w.Sharing[r.Queue] != "", r.WaitingShared, r.Queue)
	}
	for _, q := range s.Orphans {
		require.Equal(t, map[string]int{shop.Orphan: w.Waiting["vanished"]}[q.Name], q.Total.N, q.Name)
	}
	require.Len(t, s.Brakes, 1)
	require.Equal(t, shop.Brake, s.Brakes[0].Name)

	dead := map[string]map[string]int{}
	for _, groups := range decoded[[]operate.Group](t, ask("dead", "groups")) {
		for _, g := range groups {
			for queue, n := range g.Queues {
				if dead[queue] == nil {
					dead[queue] = map[string]int{}
				}
				dead[queue][g.Error] += n
			}
		}
	}
	require.Equal(t, w.Dead, dead)

	waits := map[string]int{}
	for _, m := range decoded[operate.Waiter](t, ask("waiting", "list", "--limit", "0")) {
		waits[m.Queue]++
	}
	maps.DeleteFunc(waits, func(queue string, _ int) bool { return queue == "keyed" })
	require.Equal(t, w.Waiting, waits)
	strays := map[string]int{}
	for _, m := range decoded[operate.StrandedMessage](t, ask("stranded", "list")) {
		strays[m.Queue]++
		require.Equal(t, operate.CauseQueueGone, m.Cause)
	}
	require.Equal(t, w.Stranded, strays)
	keys := decoded[[]orderJSON](t, ask("order", "list", "keyed"))[0][0]
	require.Len(t, keys.BlockedKeys(), 1)
	require.Equal(t, w.Behind, keys.BlockedKeys()[0].Waiting)

	h.pageOf(t, w, waiting)
}

var (
	pageRow  = regexp.MustCompile(`(?s)<th scope="row"><a id="q-([^"]*)".*?</tr>`)
	pageCell = regexp.MustCompile(`data-label="(Dead|Waiting)" class="n">(?:<div>)?(≤ )?([^<]*)<`)
	pageTile = regexp.MustCompile(`<dt>([^<]*)</dt><dd[^>]*>([^<]*)</dd>`)
	token    = regexp.MustCompile(`name="form" value="([^"]*)"`)
)

// pageOf compares the numbers of the page with the world.
func (h *house) pageOf(t *testing.T, w *shop.World, waiting func(queue string) int) {
	t.Helper()
	began := time.Now()
	handler, err := page.New(page.Config{URL: h.URL, Management: h.API})
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	client := &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
	t.Cleanup(func() {
		server.Close()
		require.NoError(t, handler.Close())
	})
	read := func(resp *http.Response, err error) string {
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
		return strings.ReplaceAll(string(body), "\u202f", "")
	}
	get := func(path string) string { return read(client.Get(server.URL + path)) }
	look := func(at, path string) (body string) {
		form := url.Values{"form": {token.FindStringSubmatch(get(at))[1]}}
		read(client.PostForm(server.URL+path, form))
		rig.WaitFor(t, "the look", func() bool {
			body = get(at)
			return !strings.Contains(body, "Looking at the broker: ")
		})
		return body
	}
	want := map[string]string{"queues": "12", "queues in trouble": "12"}
	dead, allWaiting := 0, 0
	for _, queue := range w.Queues {
		want[queue+" Dead"] = fmt.Sprint(w.DeadOf(queue))
		want[queue+" Waiting"] = fmt.Sprint(waiting(queue))
		dead += w.DeadOf(queue)
	}
	for queue, n := range w.Waiting {
		if queue != "vanished" { // its wait queue leads to no queue
			allWaiting += n
		}
	}
	want["dead letters"], want["waiting"] = fmt.Sprint(dead), fmt.Sprint(allWaiting)
	first, shown := "", map[string]string{}
	rig.WaitFor(t, "the page to have counted", func() bool {
		first, shown = get("/"), map[string]string{}
		for _, row := range pageRow.FindAllStringSubmatch(first, -1) {
			for _, cell := range pageCell.FindAllStringSubmatch(row[0], -1) {
				shown[html.UnescapeString(row[1])+" "+cell[1]] = cell[3]
			}
		}
		for _, tile := range pageTile.FindAllStringSubmatch(first, -1) {
			shown[tile[1]] = tile[2]
		}
		return maps.Equal(want, shown) || time.Since(began) > time.Minute
	})
	require.Equal(t, want, shown)
	require.Contains(t, first, "Brake <code>"+shop.Brake+"</code> is stopped by hand")
	require.Contains(t, look("/dead", "/dead/look"),
		fmt.Sprintf("%d causes of %d letters", shop.Causes+1, dead))
	stranded := look("/stranded?queue=millpond.stranded", "/stranded/look?queue=millpond.stranded")
	require.Equal(t, w.Stranded["old"],
		strings.Count(stranded, `<td data-label="For queue" class="long">old</td>`))
	require.Contains(t, stranded, shop.Orphan)
	far := look("/waiting?queue=returns", "/waiting/look?queue=returns")
	require.Contains(t, far, fmt.Sprintf("%d messages of other queues wait in the same wait queues",
		w.WaitingOf("returns")-w.Waiting["returns"]))
	require.Equal(t, w.WaitingOf("returns"), strings.Count(far, `data-label="Returns"`))
}
