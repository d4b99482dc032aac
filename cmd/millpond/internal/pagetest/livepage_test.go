package pagetest

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// proxy counts the streams through it. What else it passes on, it does not touch.
type proxy struct {
	site    string
	streams atomic.Int64
}

// newProxy makes a proxy that answers by itself what answer answers; nil for nothing.
func newProxy(
	t *testing.T, site string, answer func(http.ResponseWriter, *http.Request) bool,
) *proxy {
	t.Helper()
	to, err := url.Parse(site)
	require.NoError(t, err)
	p := new(proxy)
	quiet := log.New(io.Discard, "", 0)
	rewrite := func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
	}
	pass := &httputil.ReverseProxy{FlushInterval: -1, ErrorLog: quiet, Rewrite: rewrite}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events" {
			p.streams.Add(1)
			defer p.streams.Add(-1)
		}
		if answer == nil || !answer(w, r) {
			pass.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
	})
	p.site = front.URL
	return p
}

// await waits for a number of streams.
func (p *proxy) await(t *testing.T, n int64) {
	t.Helper()
	testbroker.WaitFor(t, fmt.Sprintf("%d streams", n), patience,
		func() bool { return p.streams.Load() == n })
}

// shifts adds up all shifts of the layout, from the first paint on.
const shifts = `window.shifts = 0; window.shifted = "";
	new PerformanceObserver((list) => {
		for (const e of list.getEntries()) {
			window.shifts += e.value;
			for (const s of e.sources) {
				window.shifted += (s.node?.parentNode?.outerHTML ?? "").slice(0, 150) + " " +
					JSON.stringify([s.previousRect, s.currentRect]) + "; ";
			}
		}
	}).observe({type: "layout-shift", buffered: true});`

// cell is the number of a queue in a column.
func cell(queue, column string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("tbody tr")].find(
		(r) => r.cells[0].innerText.trim() === %q)?.querySelector("[data-label='%s']")?.innerText`,
		queue, column)
}

// Given a page that is open while letters come, then its numbers change and nothing moves. Hidden,
// it asks for nothing. Without its server it says so, and how old its data are.
func numbersMove(t *testing.T, y *yard) {
	h := y.newHouse(t)
	h.crowd(14) // none waits in Levels, where a message changes its wait queue by itself
	h.open()
	front := newProxy(t, h.server.site, nil)
	b := openTab(t, h.chromium, front.site)
	call(b, page.AddScriptToEvaluateOnNewDocument,
		page.AddScriptToEvaluateOnNewDocumentParams{Source: shifts})
	b.visit("/") // until everything was counted once, also the consumer
	b.await(`document.querySelectorAll("tbody tr").length === 1 &&
		!/[?]|no consumer/.test(document.querySelector("main").innerText.replace("?: the", ""))`)
	for _, l := range []look{looks[0], looks[2]} {
		b.dress(l)
		b.visit("/")
		front.await(t, 1)
		had := eval[string](b, cell("orders", "Dead"))
		at := time.Now()
		h.Post("orders.dlq", slices.Repeat([]amqp.Publishing{shop.Letter("orders", "more",
			"dial tcp 10.0.0.1:443: connection refused", at, []byte("{}"), nil)}, 100)...)
		b.await(cell("orders", "Dead") + " !== " + fmt.Sprintf("%q", had))
		b.await(fmt.Sprintf(`parseInt(%s) >= 100`, cell("orders", "Dead")))
		rig.AwaitDepth(t, h.URL, "orders.dlq", 114+100*int(1280-l.width)/890)
		require.Zero(t, eval[float64](b, "window.shifts"), "layout shift, %s: %s", l.name,
			eval[string](b, "window.shifted"))
		b.shot(l.name)
	}
	b.hide(true)
	front.await(t, 0)
	b.hide(false)
	front.await(t, 1)

	h.server.kill()
	b.tolerate("ERR_")
	b.tolerate("status of 502")
	b.see("The connection to the server is lost")
	b.await(`parseInt(document.querySelector(".age time").innerText) >= 3`)
	b.shot("lost")
}

// Given a link whose answer is under way, when a look ends, for which the page loads itself again,
// then the person comes to where the link leads.
func clicksCount(t *testing.T, y *yard) {
	h := y.newHouse(t)
	h.open()
	asked, ended, pages := make(chan bool, 9), make(chan bool), make(chan bool)
	b := openTab(t, h.chromium, newProxy(t, h.server.site,
		func(w http.ResponseWriter, r *http.Request) bool {
			switch r.URL.Path {
			case "/events":
				w.Header().Set("Content-Type", "text/event-stream")
				stream := http.NewResponseController(w)
				_ = stream.Flush()
				select {
				case <-ended:
					_, _ = io.WriteString(w, "event: running\ndata: <p data-reload></p>\n\n")
					_ = stream.Flush()
				case <-r.Context().Done():
				}
				<-r.Context().Done()
				asked <- true // nothing can make the page load again any more
				return true
			case "/stranded":
				asked <- true
				<-pages
			case "/":
				asked <- true
			}
			return false
		}).site)
	b.visit("/")
	<-asked
	mouse{b}.press("Stranded")
	<-asked // for the next page
	select {
	case ended <- true:
		<-asked // for this page, again, or its stream has ended
	case <-asked:
	}
	close(pages)
	b.await(`location.pathname === "/stranded"`)
}
