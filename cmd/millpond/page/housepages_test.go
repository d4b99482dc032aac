package page_test

import (
	"context"
	"html"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/cmd/millpond/page"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology/operate"
)

// tags are everything but the text of a page.
var tags = regexp.MustCompile(`<[^>]*>`)

// text is the text of a page, as a reader sees it.
func (a answer) text() string {
	return strings.Join(strings.Fields(tags.ReplaceAllString(a.body, " ")), " ")
}

// Given three services with dead letters and waiting messages, then an engineer finds all of them
// on the page, without a script.
func TestPageShowsTheHouse(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	for _, queue := range []string{"orders", "invoices", "mail"} {
		h.Send(queue, "is permanent 17", "is permanent 18", "waits")
	}
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	const text = "dial tcp 10.0.0.7:443: connection refused"
	h.Post("orders.dlq", shop.Letter("orders", "again", text, at,
		[]byte(`{"n":1,"card":{"pin":"9876"}}`), amqp.Table{"tenant": "blue", "millpond-replays": "1"}))
	for queue, n := range map[string]int{"orders": 3, "invoices": 2, "mail": 2} {
		rig.AwaitDepth(t, h.URL, queue+".dlq", n)
	}
	v := h.open(func(c *page.Config) {
		c.Masks, c.Prometheus = []string{"$..pin"}, "http://127.0.0.1:1"
	})
	rig.WaitFor(t, "the broker has counted", func() bool {
		now := v.get("/")
		return now.has("orders : 3 dead letters") && now.has("mail : 2 dead letters")
	})
	require.Contains(t, v.get("/?q=OIC").text(), "1 of 1.")
	require.Contains(t, v.get("/queue?queue=orders").text(), "3 dead, 1 waiting")
	require.Regexp(t, `^{"t":\[\d+.*"dead":\[.*"note":"Prometheus does not answer: .* last hour, `,
		v.get("/history?queue=orders&range=168h").body)
	require.Contains(t, v.get("/queue").text(), "All queues")
	require.NotContains(t, v.get("/history?queue=orders").body, "note")
	require.Contains(t, v.get("/dead").text(), "Nothing was looked at yet")
	dead := v.post("/dead/look?queue=orders", url.Values{})
	require.Equal(t, "/dead", dead.Request.URL.Path)
	require.Contains(t, dead.text(), "2 causes of 3 letters")
	require.Contains(t, dead.text(), "no customer # 2")
	require.Contains(t, dead.text(), "failed again after replay")
	require.Contains(t, v.post("/dead/look", url.Values{}).text(), "2 causes of 7 letters")
	for query, want := range map[string]string{
		"reason=permanent": "of 6 letters", "reason=exhausted": "of 1 letter",
		"queue=mail":      "of 2 letters",
		"handler=nothing": "No letter matches", "error=refused": "of 1 letter",
		"error=/cust.mer/": "of 6 letters",
		"since=30m":        "of 6 letters", "until=30m": "of 1 letter", "id=again": "of 1 letter",
	} {
		require.Contains(t, v.get("/dead?"+query).text(), want, query)
	}
	for search, want := range map[string]string{ // in place of what was set, or beside it
		"10.0.0.7:443: x":                        `error 10.0.0.7:443: x × id a × queue mail ×`,
		`queue:orders since:2h error:"a b" id:b`: "error a b × id a × id b × queue orders × since 2h",
	} {
		a := v.get("/dead?" + url.Values{"q": {search}, "queue": {"mail"}, "id": {"a"}}.Encode())
		require.Contains(t, a.text(), want)
	}
	require.Contains(t, v.get("/dead?id=a&id=b").body,
		`<a href="/dead?id=b" aria-label="Take away id a">`)
	for query, want := range map[string]string{
		"header=tenant%3Dblue": "of 1 letter", "header=tenant%3D/b.ue/": "of 1 letter",
		"payload=permanent+17": "No dead letters match", // masks are set, and it is no JSON
		"payload=9876":         "No dead letters match", "payload=card": "of 1 letter",
	} {
		require.Contains(t, v.get("/dead?"+query).text(), "Nothing was looked at yet", query)
		require.Contains(t, v.post("/dead/look?"+query, url.Values{}).text(), want, query)
	}

	link := regexp.MustCompile(`/letter\?[^"]*id=again[^"]*`).FindString(v.get("/dead").body)
	one := v.get(html.UnescapeString(link))
	for _, want := range []string{
		"Attempt 1", "Attempt 2", "1 min after the one before", "connection refused", "(masked)",
		"tenant string blue", "failed again after 1 replay", "1 h ago",
	} {
		require.Contains(t, one.text(), want)
	}
	require.Contains(t, one.body, `title="`+at.UTC().Format("2006-01-02 15:04:05Z"))
	require.NotContains(t, one.body, "9876")
	file := v.post(strings.Replace(html.UnescapeString(link), "/letter", "/letter/download", 1),
		url.Values{})
	require.Equal(t, `{"n":1,"card":{"pin":"(masked)"}}`, file.body)
	require.Contains(t, file.Header.Get("Content-Disposition"), "attachment")

	require.Contains(t, v.post("/waiting/look?queue=mail", url.Values{}).text(), "mail-waits")
	require.Contains(t, v.post("/verify/look?queue=orders", url.Values{}).text(), "1 queue verified")
}

// Given many open pages, then the broker is asked as often as by one, and hardly once they are
// closed or hidden.
func TestOneLookServesAllPages(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var asked atomic.Int64
	to, err := url.Parse(h.API)
	require.NoError(t, err)
	to.User = nil
	proxy := httputil.NewSingleHostReverseProxy(to)
	counting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.EscapedPath(), "/exchanges/%2F") {
			asked.Add(1)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(counting.Close)
	const interval = 300 * time.Millisecond
	v := h.open(func(c *page.Config) {
		c.Management = strings.Replace(counting.URL, "http://", "http://guest:guest@", 1)
		c.Interval = interval
	})
	v.get("/")
	require.LessOrEqual(t, asked.Load(), int64(2), "one for the page and one for the history")
	began := time.Now()
	var streams []*stream
	for range 50 {
		streams = append(streams, v.stream())
	}
	for _, s := range streams {
		s.await("now", "")
	}
	rig.WaitFor(t, "four looks", func() bool { return asked.Load() >= 5 })
	most := 4 + int64(time.Since(began)/interval)
	require.LessOrEqual(t, asked.Load(), most)
	for _, s := range streams {
		s.close()
	}
	var quiet rig.Stillness // for longer than ten intervals
	rig.WaitFor(t, "no look any more", func() bool { return quiet.Look(asked.Swap(0) > 0) })
}

// Given a page whose user may not ask for brakes over AMQP, then it says so and shows the rest.
func TestPageWithoutAMQPShowsTheRest(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	o := rig.OpenOperator(t, h.URL)
	_, err := o.StopBrake(t.Context(), "payments", "anna", "", time.Hour)
	require.NoError(t, err)
	refused := operate.WithCredentials(func(context.Context) (user, password string, err error) {
		return "guest", "wrong", nil
	})
	v := h.open(func(c *page.Config) { c.Operator = []operate.Option{refused} })
	rig.WaitFor(t, "the page to count", func() bool {
		return v.get("/").has("stopped brakes could not be read")
	})
	require.Contains(t, v.get("/").text(), " 3 of 3.")
}
