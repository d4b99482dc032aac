package page_test

import (
	"bufio"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/cmd/millpond/page"
	"github.com/millpond-go/millpond/internal/testing/rig"
)

// house is a house of the shop whose page is visited.
type house struct{ *shop.House }

func newHouse(t testing.TB) *house {
	t.Helper()
	h := &house{shop.Open(t)}
	h.Furnish()
	return h
}

// visitor is a browser without a script.
type visitor struct {
	t      testing.TB
	server *httptest.Server
	client *http.Client
}

// open serves a page of the house and visits it.
func (h *house) open(change func(*page.Config)) *visitor {
	h.T.Helper()
	config := page.Config{URL: h.URL, Management: h.API, Interval: 50 * time.Millisecond}
	if change != nil {
		change(&config)
	}
	return visit(h.T, config)
}

func visit(t testing.TB, config page.Config) *visitor {
	t.Helper()
	handler, err := page.New(config)
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		require.NoError(t, handler.Close())
		server.Close()
	})
	return &visitor{t: t, server: server, client: newBrowser(t)}
}

// answer is a response with its body.
type answer struct {
	*http.Response
	body string
}

// with sends a request that change has changed.
func (v *visitor) with(method, path, body string, change func(*http.Request)) answer {
	v.t.Helper()
	req, err := http.NewRequestWithContext(v.t.Context(), method, v.server.URL+path,
		strings.NewReader(body))
	require.NoError(v.t, err)
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if change != nil {
		change(req)
	}
	resp, err := v.client.Do(req)
	require.NoError(v.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(v.t, err)
	return answer{resp, string(text)}
}

func (v *visitor) get(path string) answer {
	v.t.Helper()
	return v.with(http.MethodGet, path, "", nil)
}

// post sends a form as a browser does, with the token of a page that it loads before.
func (v *visitor) post(path string, form url.Values) answer {
	v.t.Helper()
	if form.Get("form") == "" {
		form.Set("form", tokenIn(v.get("/dead").body))
	}
	got := v.with(http.MethodPost, path, form.Encode(), nil)
	if strings.Contains(got.body, looking) { // a busy machine
		rig.WaitFor(v.t, "the look", func() bool {
			got = v.get(got.Request.URL.RequestURI())
			return !strings.Contains(got.body, looking)
		})
	}
	return got
}

// looking is on a page while a look runs, or if one has ended while the page was made.
const looking = `data-live="look-`

// tokenIn returns the token of the forms of a page.
func tokenIn(body string) string {
	_, rest, _ := strings.Cut(body, `name="form" value="`)
	token, _, _ := strings.Cut(rest, `"`)
	return token
}

func newBrowser(t testing.TB) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Jar: jar, Transport: transport, Timeout: 2 * time.Minute}
}

// events asks for the events of an open page. To close the body is to close the page.
func (v *visitor) events() *http.Response {
	v.t.Helper()
	req, err := http.NewRequestWithContext(v.t.Context(), http.MethodGet, v.server.URL+"/events", nil)
	require.NoError(v.t, err)
	client := *v.client
	client.Timeout = 0
	resp, err := client.Do(req)
	require.NoError(v.t, err)
	return resp
}

// stream is an open page.
type stream struct {
	t    testing.TB
	body io.ReadCloser
	read *bufio.Reader
}

func (v *visitor) stream() *stream {
	v.t.Helper()
	resp := v.events()
	require.Equal(v.t, http.StatusOK, resp.StatusCode)
	return &stream{v.t, resp.Body, bufio.NewReader(resp.Body)}
}

func (s *stream) close() { _ = s.body.Close() }

// await reads until an event of a part has a text.
func (s *stream) await(part, text string) {
	s.t.Helper()
	for event := ""; ; {
		line, err := s.read.ReadString('\n')
		require.NoError(s.t, err, "before %q", text)
		if name, is := strings.CutPrefix(line, "event: "); is {
			event = strings.TrimSpace(name)
		}
		if event == part && strings.Contains(line, text) {
			return
		}
	}
}

// has reports whether a reader sees the text.
func (a answer) has(text string) bool { return strings.Contains(a.text(), text) }
