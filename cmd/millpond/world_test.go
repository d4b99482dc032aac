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
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/cmd/millpond/page"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/operate"
)

// decoded reads all values of a type that a command has printed.
func decoded[T any](t testing.TB, text string) (all []T) {
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
// of messages that were put in. With MILLPOND_WORLD it stays until it is interrupted: `make world`.
func TestWorld(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	w := shop.NewWorld(h.House)
	if os.Getenv("MILLPOND_WORLD") != "" {
		fmt.Printf("millpond --url %s --management %s\n", h.URL, h.API)
		interrupted := make(chan os.Signal, 1)
		signal.Notify(interrupted, os.Interrupt)
		<-interrupted
		return // a person may have changed it
	}
	waiting := func(queue string) int {
		if queue == "keyed" {
			return w.Behind + 1 // and the mark of the letter that blocks its key
		}
		return w.WaitingOf(queue)
	}
	h.numbers(t, w, waiting)
	h.pageNumbers(t, w, waiting)
	h.urlAlone(t)
	h.wrongFlags(t, w)
	h.severalQueues(t, w)
}

// numbers compares the numbers of the tool with the world.
func (h *house) numbers(t *testing.T, w *shop.World, waiting func(queue string) int) {
	t.Helper()
	ask := func(args ...string) string {
		t.Helper()
		o := tool(t, h.url, "", append([]string{"--url", h.url, "--json"}, args...)...)
		require.Zero(t, o.code, "%v: %s", args, o.err)
		return o.out
	}
	type queue struct {
		Name                      string
		Total, Consumers, Waiting operate.Count
		DeadLetters               operate.Count `json:"dead_letters"`
		WaitingShared             bool          `json:"waiting_shared"`
	}
	type status struct {
		Queues, Stranded, Orphans []queue
		Stopped                   []header.BrakeState
		Gone                      []operate.Gone
		Incidents                 []operate.Incident
	}
	var s status
	rig.WaitFor(t, "the broker to have counted", func() bool {
		s = decoded[status](t, ask("status"))[0]
		for _, r := range s.Queues {
			if r.Waiting.N != waiting(r.Name) || r.DeadLetters.N != w.DeadOf(r.Name) {
				t.Logf("%s: %v waiting of %d, %v dead of %d", r.Name, r.Waiting, waiting(r.Name),
					r.DeadLetters, w.DeadOf(r.Name))
				return false
			}
		}
		uncounted := func(q queue) bool { return q.Total.N < 0 }
		return s.Stranded[0].Total.N >= 0 && len(s.Orphans) > 0 &&
			!slices.ContainsFunc(s.Orphans, uncounted)
	})
	require.Len(t, s.Queues, len(w.Queues))
	for _, r := range s.Queues {
		require.Contains(t, w.Queues, r.Name)
		running := r.Name != shop.Down && r.Name != shop.Braked
		require.Equal(t, running, r.Consumers.N == 1, r.Name)
		var texts []string
		for _, i := range s.Incidents {
			if i.Concerns(r.Name) {
				texts = append(texts, h.stable(i.Text))
			}
		}
		require.ElementsMatch(t, trouble(w, r.Name), texts, r.Name)
		require.Equal(t, w.Sharing[r.Name] != "", r.WaitingShared, r.Name)
	}
	for _, q := range s.Orphans {
		require.Equal(t, map[string]int{shop.Orphan: w.Waiting["vanished"]}[q.Name], q.Total.N, q.Name)
	}
	for i := range s.Gone {
		require.WithinRange(t, s.Gone[i].First, time.Now(), time.Now().Add(time.Hour))
		s.Gone[i].First = time.Time{}
	}
	require.ElementsMatch(t, []operate.Gone{
		{Queue: "vanished", Messages: w.Waiting["vanished"], Fate: operate.FateHeld},
		{Queue: "gone", Messages: w.Waiting["gone"], Fate: operate.FateStranded},
	}, s.Gone)
	require.Len(t, s.Stopped, 1)
	require.Equal(t, shop.Brake, s.Stopped[0].Name)

	// The commands, and a program, have the same.
	shown := operate.View{}
	for _, groups := range decoded[[]operate.Group](t, ask("dead", "groups")) {
		shown.Mains = append(shown.Mains, operate.Main{Causes: groups})
	}
	shown.Waiting = decoded[operate.Waiter](t, ask("waiting", "list", "--limit", "0"))
	shown.Strays = decoded[operate.StrandedMessage](t, ask("stranded", "list"))
	lines := decoded[[]orderJSON](t, ask("order", "list", "keyed"))
	shown.Mains[0].Keys = &lines[0][0].OrderState
	sameMessages(t, w, shown)
	read, err := rig.OpenOperator(t, h.URL, operate.WithManagement(h.API)).View(t.Context(),
		operate.ViewOptions{Exact: true, Brakes: true, Messages: true})
	require.NoError(t, err)
	sameMessages(t, w, read)
	require.Equal(t, shop.Brake, read.Stopped[0].Name)
	require.Empty(t, read.Unclear)
	for _, m := range read.Mains {
		require.Equal(t, w.DeadOf(m.Name), m.DeadLetters.N, m.Name)
		require.Equal(t, waiting(m.Name), m.Waiting.N, m.Name)
	}
}

// trouble is what the tool and the page say of a queue.
func trouble(w *shop.World, queue string) []string {
	list := []string{fmt.Sprintf("%d dead letters", w.DeadOf(queue))}
	switch queue {
	case "keyed":
		return []string{fmt.Sprintf(`key "k 1" is blocked by a dead letter, %d behind it`, w.Behind)}
	case shop.Braked:
		list = append(list, "stopped by hand by anna, ends at <time>: it moves")
	case shop.Down:
		list = append(list, fmt.Sprintf("no consumer, and at most %d messages wait to come back",
			w.WaitingOf(queue)))
	}
	return list
}

// sameMessages compares the messages of a view with the world.
func sameMessages(t *testing.T, w *shop.World, v operate.View) {
	t.Helper()
	dead := map[string]map[string]int{}
	for _, m := range v.Mains {
		for _, g := range m.Causes {
			for queue, n := range g.Queues {
				if dead[queue] == nil {
					dead[queue] = map[string]int{}
				}
				dead[queue][g.Error] += n
			}
		}
		if m.Keys != nil {
			require.Len(t, m.Keys.BlockedKeys(), 1)
			require.Equal(t, w.Behind, m.Keys.BlockedKeys()[0].Waiting)
		}
	}
	require.Equal(t, w.Dead, dead)
	waits, strays := map[string]int{}, map[string]int{}
	for _, m := range v.Waiting {
		waits[m.Queue]++
	}
	require.Equal(t, w.Waiting, waits)
	for _, m := range v.Strays {
		strays[m.Queue]++
		require.Equal(t, operate.CauseQueueGone, m.Cause)
	}
	require.Equal(t, w.Stranded, strays)
}

var (
	pageRow  = regexp.MustCompile(`(?s)<th scope="row"><a id="q-([^"]*)".*?</tr>`)
	tags     = regexp.MustCompile(`<[^>]*>`)
	pageCell = regexp.MustCompile(`data-label="(Dead|Waiting)" class="n">(?:<div>)?(≤ )?([^<]*)<`)
	pageList = regexp.MustCompile(`<li>([^<]*)</li>`)
	token    = regexp.MustCompile(`name="form" value="([^"]*)"`)
)

// pageNumbers compares the numbers of the page with the world.
func (h *house) pageNumbers(t *testing.T, w *shop.World, waiting func(queue string) int) {
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
			return !strings.Contains(body, `data-live="look-`) // nor one that ended while it was made
		})
		return body
	}
	want := map[string]string{}
	dead := 0
	for _, queue := range w.Queues {
		want[queue+" Dead"] = fmt.Sprint(w.DeadOf(queue))
		want[queue+" Waiting"] = map[bool]string{true: "≤ "}[w.Sharing[queue] != ""] +
			fmt.Sprint(waiting(queue))
		want[queue+" Incidents"] = map[string]string{
			"keyed": trouble(w, "keyed")[0], shop.Down: "dead letters|" + trouble(w, shop.Down)[1],
			shop.Braked: "brake " + shop.Brake + " is stopped|dead letters",
		}[queue]
		if want[queue+" Incidents"] == "" {
			want[queue+" Incidents"] = "dead letters"
		}
		dead += w.DeadOf(queue)
	}
	first, shown := "", map[string]string{}
	rig.WaitFor(t, "the page to have counted", func() bool {
		first, shown = get("/"), map[string]string{}
		for _, row := range pageRow.FindAllStringSubmatch(first, -1) {
			for _, cell := range pageCell.FindAllStringSubmatch(row[0], -1) {
				shown[html.UnescapeString(row[1])+" "+cell[1]] = cell[2] + cell[3]
			}
			var list []string
			for _, entry := range pageList.FindAllStringSubmatch(row[0], -1) {
				list = append(list, h.stable(html.UnescapeString(entry[1])))
			}
			slices.Sort(list)
			shown[html.UnescapeString(row[1])+" Incidents"] = strings.Join(list, "|")
		}
		return maps.Equal(want, shown) || time.Since(began) > time.Minute
	})
	require.Equal(t, want, shown)
	require.Contains(t, first, "brake "+shop.Brake+"</strong>: stopped by hand by anna, ends <time ")
	require.Contains(t, first, "Not consumed, so that messages stay: <code>"+shop.Braked+"</code></p>")
	require.Contains(t, first, "12 of 12.")
	for _, queue := range []string{"gone", "vanished"} {
		require.Contains(t, html.UnescapeString(first), fmt.Sprintf(
			"%s</strong>: %d messages wait for it, and it is gone; the first returns <time ",
			queue, w.Waiting[queue]))
	}
	require.Contains(t, look("/dead", "/dead/look"),
		fmt.Sprintf("%d causes of %d letters", shop.Causes+1, dead))
	rig.WaitFor(t, "page and tool to find the same", func() bool { // the broker counts late
		o := tool(t, h.url, "", "--url", h.url, "--json", "verify")
		all, verified := decoded[[]operate.Finding](t, o.out)[0], look("/verify", "/verify/look")
		missing := ""
		for _, f := range all {
			if !strings.Contains(verified, html.EscapeString(f.Text)) {
				missing += f.String() + "\n"
			}
		}
		t.Log("not on the page:", missing)
		return len(all) > 0 && missing == ""
	})
	stranded := look("/stranded?queue=millpond.stranded", "/stranded/look?queue=millpond.stranded")
	require.Equal(t, w.Stranded["old"],
		strings.Count(stranded, `<td data-label="For queue" class="long">old</td>`))
	require.Contains(t, stranded, shop.Orphan)
	require.Contains(t, stranded, fmt.Sprintf(`<th scope="row" class="long">old</th><td `+
		`data-label="Cause" class="long">the shop is closed</td><td data-label="Messages" class="n">%d<`,
		w.Stranded["old"]))
	require.Contains(t, stranded, "queue &#34;old&#34; does not exist or cannot be reached")
	require.Contains(t, first,
		"millpond.stranded</strong>: 3 messages lost their queue while they waited")
	byQueue := html.UnescapeString(tags.ReplaceAllString(look("/waiting", "/waiting/look"), " "))
	for queue, n := range w.Waiting {
		require.Regexp(t, fmt.Sprintf(`(?:^|\s)%s\s+(?:is gone\s+)?%d\s+(?:in \d+ |\d+ \S+ ago)`,
			regexp.QuoteMeta(queue), n), byQueue)
	}
	far := look("/waiting?queue=returns", "/waiting/look?queue=returns")
	require.Contains(t, far, fmt.Sprintf("%d messages of other queues wait in the same wait queues",
		w.WaitingOf("returns")-w.Waiting["returns"]))
	require.Equal(t, w.WaitingOf("returns"), strings.Count(far, `data-label="Returns"`))
}

// urlAlone requires that every command shows all of it to a person who knows only the URL.
func (h *house) urlAlone(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		code int
	}{
		{"url-status-orders", []string{"status", "orders"}, exitDone},
		{"url-verify", []string{"verify"}, exitFound},
		{"url-waiting-gone", []string{"waiting", "list", "gone"}, exitDone},
		{"url-waiting-none", []string{"waiting", "list", "nowhere"}, exitUsage},
		{"url-stranded", []string{"stranded", "list"}, exitDone},
		{"url-gone", []string{"status", "gone"}, exitUsage},
		{"blind-none", []string{"--no-management", "verify"}, exitUsage},
		{"blind-dead", []string{"--no-management", "dead", "list", "mail"}, exitRefused},
	} {
		o := h.ask(c.args...)
		require.Equal(t, c.code, o.code, "%s: %s%s", c.name, o.out, o.err)
		golden(t, c.name, o.out+o.err)
	}
}

// wrongFlags requires of a policy, a strategy, a prefix or another flag that is wrong that no
// command says that nothing is there: the error names the flag and the queues of the broker. All
// commands get their plans in one way: one flag is tried with all of them, and all flags with one.
func (h *house) wrongFlags(t *testing.T, w *shop.World) {
	t.Helper()
	nothing := regexp.MustCompile(`nothing waits|no dead letters|nothing found|0 dead letters` +
		`|of 0|without trouble|nothing is stranded`)
	try := func(flag, command, queue string) {
		t.Helper()
		args := strings.Fields(flag + " " + strings.ReplaceAll(command, "Q", queue))
		o := h.ask(args...)
		require.Equal(t, exitUsage, o.code, "%v: %s%s", args, o.out, o.err)
		require.NotRegexp(t, nothing, o.out+o.err, args)
		require.Contains(t, o.err, queue, args)
		require.Contains(t, o.err, flag, args)
	}
	for _, command := range []string{
		"status Q", "waiting list Q", "waiting release Q --id x", "waiting cancel Q --id x",
		"dead list Q", "dead show Q #1", "dead replay Q --dry-run", "dead discard Q --dry-run",
		"dead export Q --all", "dead groups Q",
	} {
		try("--policy 7s", command, "orders")
	}
	for queue, wrong := range map[string][]string{
		"orders": {
			"--policy 200ms,7s,1h", "--strategy levels", "--strategy shared", "--type classic",
			"--prefix wrong", "--return-to wrong", "--dlq wrong",
		},
		"invoices": {
			"--policy 7s", "--strategy perqueue", "--type quorum", "--prefix wrong", "--return-to wrong",
		},
		"mail": {"--strategy perattempt", "--type classic", "--prefix wrong"},
	} {
		for _, flag := range wrong {
			try(flag, "dead list Q", queue)
		}
	}
	for _, queue := range w.Queues {
		require.Equal(t, w.DeadOf(queue), testbroker.Depth(t, h.URL, queue+".dlq"), "nothing has moved")
	}
}

// severalQueues requires of a position, a limit or a message that is in one of several queues that
// no command acts on more messages than it says, and that each finding has one exit code.
func (h *house) severalQueues(t *testing.T, w *shop.World) {
	for _, args := range [][]string{
		{"dead", "discard", "--limit", "1", "--yes"},
		{"dead", "replay", "--id", "#1"},
		{"dead", "discard", "--id", "#1", "--yes"},
		{"dead", "replay", "--edit", "#1"},
		{"dead", "replay", "--all", "--every", "1m"},
	} {
		o := h.ask(args...)
		require.Equal(t, exitUsage, o.code, "%v: %s", args, o.err)
		require.Contains(t, o.err, "name", args)
	}
	for _, args := range [][]string{
		{"waiting", "list", "orders", "orders"},
		{"waiting", "cancel", "--id", "mail-waits"},
		{"dead", "show", "0-1-0"},
		{"stranded", "show", "old-is-stranded-0"},
	} {
		o := h.ask(args...)
		require.Equal(t, exitDone, o.code, "%v: %s%s", args, o.out, o.err)
	}
	own := h.ask("waiting", "list", shop.Down, "--json").out // it shares its wait queues
	require.Equal(t, w.Waiting[shop.Down], strings.Count(own, `"queue":"`+shop.Down+`"`), own)
	require.Equal(t, w.Waiting[shop.Down], strings.Count(own, "\n"), own)
	require.Equal(t, exitFound, h.ask("waiting", "cancel", "--id", "none").code)
	o := h.ask("dead", "replay", shop.Braked, "--dry-run")
	require.Equal(t, exitFound, o.code, o.err)
	require.Contains(t, o.out, `critical: queue "prices": has no consumer, because brake payments is `+
		"stopped, so that the letters wait in it: millpond brake start 'payments'\n")
	o = h.ask("dead", "replay", "news", "--dry-run")
	require.Contains(t, o.out, `warning: queue "millpond.stranded": messages are stranded`)
	require.Equal(t, exitDone, o.code, o.out)
	require.Contains(t, h.ask("dead", "list", "--generate-shell-completion").out, "\nkeyed\n")
	log := filepath.Join(t.TempDir(), "audit.jsonl")
	o = h.ask("--audit", log, "stranded", "return", "old")
	require.Equal(t, exitFound, o.code, o.err)
	require.Equal(t, "<time>  "+editor()+"  failed: 0 of 3\n"+
		"    stranded return 'old', queue millpond.stranded\n    3 messages left: queue \"old\" does "+
		"not exist or cannot be reached; --to names another\n", h.ask("--audit", log, "audit").out)
	o = h.ask("--json", "dead", "discard", "--reason", "permanent", "--yes")
	require.Equal(t, exitDone, o.code, o.err)
	for _, queue := range shop.Queues {
		require.Contains(t, o.out, `"queue": "`+queue+`"`)
	}
	rig.AwaitDepth(t, h.URL, "orders.dlq", w.DeadOf("orders")-3)
	rig.DeclareQueue(t, h.URL, "letters", amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(1<<31 - 1),
	})
	rig.DeclareQueue(t, h.URL, "orders.dlq.originals", amqp.Table{ // of an edit
		"x-queue-type": "quorum", "x-delivery-limit": int64(1<<31 - 1),
	})
	unclaimed := decoded[struct{ Unclaimed []struct{ Name string } }](t,
		h.ask("--json", "status").out)[0].Unclaimed
	require.Len(t, unclaimed, 1)
	require.Equal(t, "letters", unclaimed[0].Name)
	o = h.ask("--dlq", "letters", "verify", "orders")
	require.Equal(t, exitDone, o.code, "%s%s", o.out, o.err)
	o = h.ask("--dlq", "nowhere", "verify", "orders")
	require.Equal(t, exitUsage, o.code, "%s%s", o.out, o.err)
	require.Contains(t, h.ask("--json", "status").out, `"unclaimed"`)
	rig.DeleteQueue(t, h.URL, "mail.dlq")
	o = h.ask("dead", "list", "orders", "mail")
	require.NotEqual(t, exitDone, o.code, "%s%s", o.out, o.err)
	require.Contains(t, o.out, "0-2-0")
	require.Contains(t, o.err, "mail")
}
