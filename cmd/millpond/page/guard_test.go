package page_test

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/page"
	"github.com/millpond-go/millpond/internal/testing/rig"
)

const (
	actToken  = "act-token-of-the-house"
	readToken = "read-token-of-the-house"
)

// nowhere is a page whose broker does not answer: the guard decides before the broker is asked.
func nowhere(t *testing.T, change func(*page.Config)) *visitor {
	t.Helper()
	config := page.Config{URL: "amqp://user:secret-of-the-broker@127.0.0.1:1/"}
	if change != nil {
		change(&config)
	}
	return visit(t, config)
}

// headers returns a change that sets headers, in pairs; Host is a header here.
func headers(pairs ...string) func(*http.Request) {
	return func(r *http.Request) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == "Host" {
				r.Host = pairs[i+1]
			}
			r.Header.Set(pairs[i], pairs[i+1])
		}
	}
}

// Given an attacker's name that points at the page, a page of another site in the same browser, or
// a form without the token of this page and this browser, then the request is refused.
func TestForgedRequestsAreRefused(t *testing.T) {
	t.Parallel()
	const (
		get, post              = http.MethodGet, http.MethodPost
		misdirected, forbidden = http.StatusMisdirectedRequest, http.StatusForbidden
	)
	v := nowhere(t, func(c *page.Config) {
		trusting(c) // a page with a form
		c.Hosts = []string{"ops.example.com"}
	})
	stranger := &visitor{t, v.server, newBrowser(t)}
	own, foreign := tokenIn(v.get("/doctor").body), tokenIn(stranger.get("/doctor").body)
	require.NotEqual(t, own, foreign)
	check := func(want int, v *visitor, method, path, token string, pairs ...string) {
		t.Helper()
		body := ""
		if method == post {
			body = url.Values{"form": {token}}.Encode()
		}
		got := v.with(method, path, body, headers(pairs...))
		require.Equal(t, want, got.StatusCode, "%s %s %q %q", method, path, token, pairs)
	}
	for _, host := range []string{
		"evil.example", "evil.example:8099", "localhost.evil.example", "127.0.0.1.evil.example",
		"ops.example.com.evil.ex",
	} {
		check(misdirected, v, get, "/", "", "Host", host)
		check(misdirected, v, get, "/events", "", "Host", host)
	}
	for _, host := range []string{"127.0.0.1:8099", "[::1]:8099", "localhost", "OPS.example.com:443"} {
		check(http.StatusOK, v, get, "/", "", "Host", host)
	}
	for _, pairs := range [][]string{
		{"Origin", "https://evil.example"},
		{"Origin", "null"},
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"}, // another port of this host
	} {
		check(forbidden, v, post, "/verify/look", own, pairs...)
	}
	for _, path := range []string{"/", "/events", "/dead"} {
		check(forbidden, v, get, path, "", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors")
	}
	check(http.StatusOK, v, get, "/", "", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate")
	for _, token := range []string{"", "x", foreign, own[1:]} {
		for _, path := range []string{"/dead/look", "/letter/look", "/letter/download", "/verify/look"} {
			check(forbidden, v, post, path, token)
		}
	}
	check(forbidden, v, post, "/verify/look?form="+url.QueryEscape(own), "")
	check(forbidden, stranger, post, "/verify/look", own) // its cookie is another one
	got := v.post("/verify/look", url.Values{"form": {own}})
	require.NotEqual(t, forbidden, got.StatusCode)
}

func tokens(c *page.Config) {
	c.Accounts = []page.Account{
		{Name: "token", Secret: actToken, Token: true, Role: page.RoleAct},
		{Name: "viewer", Secret: readToken, Token: true, Role: page.RoleRead},
		{Name: "ada", Secret: "password of ada", Role: page.RoleRead},
	}
}

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// Given accounts, then nothing but the form of the login is shown without one.
func TestNothingIsShownWithoutAnAccount(t *testing.T) {
	t.Parallel()
	v := nowhere(t, tokens)
	refuses := func(path, authorization string) {
		t.Helper()
		got := v.with(http.MethodGet, path, "", headers("Authorization", authorization))
		require.Equal(t, http.StatusUnauthorized, got.StatusCode, "%s %s", path, authorization)
		require.Contains(t, got.body, "Log in")
		require.NotContains(t, got.body, "virtual host")
	}
	for _, path := range []string{"/", "/dead", "/letter", "/events", "/doctor", "/verify", "/no"} {
		refuses(path, "")
	}
	for _, authorization := range []string{ // each takes half a second
		"Bearer wrong-token-of-the-house", "Bearer " + actToken[1:], "Bearer", basic("token", "x"),
		basic("ada", actToken), basic("", ""), basic("bob", "password of ada"), "Bearer password of ada",
		basic("viewer", actToken),
	} {
		refuses("/dead", authorization)
	}
	for _, authorization := range []string{
		"Bearer " + actToken, "Bearer " + readToken, basic("ada", "password of ada"),
		basic("token", actToken),
	} {
		got := v.with(http.MethodGet, "/", "", headers("Authorization", authorization))
		require.Equal(t, http.StatusOK, got.StatusCode, authorization)
	}
}

// Given an interrupted action, then an answer before a login says nothing of it, of the broker or
// of a person: neither to a stranger, nor through a name that an attacker points at the page.
func TestAnswersBeforeALoginNameNothing(t *testing.T) {
	t.Parallel()
	const get, post, action = http.MethodGet, http.MethodPost, `{"id": "a1", "who": "grace",
		"words": "Replay all of salaries", "state": "interrupted", "noted": "2999-01-01T00:00:00Z"}`
	v := nowhere(t, func(c *page.Config) {
		c.Accounts = []page.Account{{Name: "ada", Secret: "password of ada", Role: page.RoleAct}}
		c.URL += "payroll"
		c.AllowActions, c.StateFolder = true, t.TempDir()
		journal := filepath.Join(c.StateFolder, "actions")
		require.NoError(t, os.Mkdir(journal, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(journal, "a1.json"), []byte(action), 0o600))
	})
	login := []string{"Authorization", basic("ada", "password of ada")}
	for _, c := range []struct {
		want         int
		method, path string
		pairs        []string
	}{
		{http.StatusOK, get, "/actions", login},
		{http.StatusUnauthorized, get, "/", nil},
		{http.StatusUnauthorized, post, "/action/start", nil},
		{http.StatusNotFound, post, "/static/", nil},
		{http.StatusMisdirectedRequest, get, "/", append(login, "Host", "evil.example")},
		{http.StatusForbidden, post, "/login", append(login, "Origin", "https://evil.example")},
	} {
		got := v.with(c.method, c.path, "", headers(c.pairs...))
		require.Equal(t, c.want, got.StatusCode, "%s %s", c.method, c.path)
		for _, text := range []string{"payroll", "grace", "salaries", "/actions", "may act"} {
			require.Equal(t, c.want == http.StatusOK, strings.Contains(got.body, text), "%s in %s %s: %s",
				text, c.method, c.path, got.body)
		}
	}
}

// Given a service that says who a person is, then that alone counts: a person without a name or a
// role is a stranger, and a form is that of its person.
func TestAServiceSaysWhoAsks(t *testing.T) {
	t.Parallel()
	const user = "X-User"
	v := nowhere(t, func(c *page.Config) {
		c.URL += "payroll"
		c.AllowActions = true
		c.Authorize = func(r *http.Request) (string, page.Role) {
			name, role, _ := strings.Cut(r.Header.Get(user), " ")
			return name, page.Role(role)
		}
	})
	for _, who := range []string{"", "grace", "grace boss", " act"} {
		got := v.with(http.MethodGet, "/", "", headers(user, who))
		require.Equal(t, http.StatusForbidden, got.StatusCode, who)
		require.Empty(t, got.Header.Get("WWW-Authenticate"))
		require.NotContains(t, got.body, "payroll")
		require.NotContains(t, got.body, "grace")
	}
	form := v.with(http.MethodGet, "/doctor", "", headers(user, "grace act")).body
	for who, want := range map[string]int{
		"grace act": http.StatusNotFound, // there is no action
		"eve act":   http.StatusForbidden, "grace read": http.StatusForbidden,
	} {
		got := v.with(http.MethodPost, "/action/stop", "form="+tokenIn(form), headers(user, who))
		require.Equal(t, want, got.StatusCode, "%s: %s", who, got.body)
	}
}

// login sends the form of the login.
func (v *visitor) login(secret string) int {
	v.t.Helper()
	return v.with(http.MethodPost, "/login", url.Values{"secret": {secret}}.Encode(), nil).StatusCode
}

// Given 260 strangers who send their login slowly and hang up, then a person who has logged in sees
// the page all the time, and the next one may log in at once.
func TestSlowStrangersDoNotShutThePage(t *testing.T) {
	t.Parallel()
	v := nowhere(t, tokens)
	require.Equal(t, http.StatusOK, v.login(readToken))
	var slow []net.Conn
	for range 260 {
		c, err := net.Dial("tcp", v.server.Listener.Addr().String())
		require.NoError(t, err)
		slow = append(slow, c)
		_, err = fmt.Fprint(c, "POST /login HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"+
			"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 12\r\n\r\n")
		require.NoError(t, err)
		_, err = bufio.NewReader(c).ReadString('\n') // it is refused, or asked for the form
		require.NoError(t, err)
	}
	require.Equal(t, http.StatusOK, v.get("/").StatusCode)
	for _, c := range slow {
		_, _ = fmt.Fprint(c, "secret=wrong")
		require.NoError(t, c.Close())
	}
	next := &visitor{t, v.server, newBrowser(t)}
	require.Eventually(t, func() bool { return next.login(readToken) == http.StatusOK },
		20*time.Second, 10*time.Millisecond)
}

// Given a secret that is good once, then it opens one session, and the next one another.
func TestASecretThatIsGoodOnce(t *testing.T) {
	t.Parallel()
	secrets := make(chan string, 9)
	v := nowhere(t, func(c *page.Config) {
		c.Accounts = []page.Account{{
			Name: "local", Secret: actToken, Token: true, Role: page.RoleAct,
			Once: func(next string) { secrets <- next },
		}}
	})
	for secret, n := actToken, 0; n < 2; n++ {
		var all sync.WaitGroup
		var opened atomic.Int64
		for range 4 { // at the same time
			all.Go(func() {
				if (&visitor{t, v.server, newBrowser(t)}).login(secret) == http.StatusOK {
					opened.Add(1)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, opened.Load())
		secret = <-secrets
	}
}

// Given a login, then it lasts until the logout, in this browser alone, and its cookie is new.
func TestLoginIsASession(t *testing.T) {
	t.Parallel()
	v := nowhere(t, tokens)
	require.Equal(t, http.StatusUnauthorized, v.login("wrong-token"))
	require.Equal(t, http.StatusOK, v.login(readToken))
	inside := v.get("/")
	require.Contains(t, inside.body, "You are viewer")
	other := &visitor{t, v.server, newBrowser(t)}
	require.Equal(t, http.StatusUnauthorized, other.get("/").StatusCode)
	v.post("/logout", url.Values{"form": {tokenIn(inside.body)}})
	outside := v.get("/")
	require.Equal(t, http.StatusUnauthorized, outside.StatusCode)
	stolen := headers("Cookie", inside.Request.Header.Get("Cookie"))
	require.Equal(t, http.StatusUnauthorized, other.with(http.MethodGet, "/", "", stolen).StatusCode)
	// A cookie that an attacker has planted is not the session's.
	require.Equal(t, http.StatusOK, v.login(readToken))
	planted := headers("Cookie", outside.Request.Header.Get("Cookie"))
	require.Equal(t, http.StatusUnauthorized, other.with(http.MethodGet, "/", "", planted).StatusCode)
}

// unsafe are scripts and styles that the policy would have to allow.
var unsafe = regexp.MustCompile(`(?i)<script(?:>|[^>]*>[^<])|<style|\sstyle=|\son[a-z]+=|` +
	`javascript:|(?:src|href|action)="(?:https?:)?//`)

// Every page has a strict policy with its own nonce, and needs nothing that the policy forbids.
func TestPolicyOfPages(t *testing.T) {
	t.Parallel()
	v := nowhere(t, nil)
	nonces := map[string]bool{}
	for _, path := range []string{"/", "/dead", "/waiting", "/stranded", "/verify", "/doctor", "/no"} {
		got := v.get(path)
		policy := got.Header.Get("Content-Security-Policy")
		nonce := regexp.MustCompile(`script-src 'nonce-([^']{40,})'`).FindStringSubmatch(policy)
		require.NotNil(t, nonce, policy)
		require.False(t, nonces[nonce[1]])
		nonces[nonce[1]] = true
		for _, part := range []string{"default-src 'none'", "base-uri 'none'", "frame-ancestors 'none'"} {
			require.Contains(t, policy, part)
		}
		require.NotContains(t, policy, "unsafe")
		require.NotContains(t, policy, "*")
		require.Contains(t, got.body, `nonce="`+nonce[1]+`"`)
		require.Empty(t, unsafe.FindString(got.body), path)
		for name, value := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			"Cache-Control": "no-store", "X-Frame-Options": "DENY",
		} {
			require.Equal(t, value, got.Header.Get(name), path)
		}
	}
	cookie := (&visitor{t, v.server, newBrowser(t)}).get("/").Header.Get("Set-Cookie")
	require.Contains(t, cookie, "HttpOnly")
	require.Contains(t, cookie, "SameSite=Strict")
}

// No page and no error has a password of the broker, nor the tokens.
func TestNoSecretIsShown(t *testing.T) {
	t.Parallel()
	v := nowhere(t, func(c *page.Config) {
		tokens(c)
		c.Management = "http://user:secret-of-the-api@127.0.0.1:1"
	})
	for _, path := range []string{"/", "/dead", "/waiting", "/stranded", "/verify", "/doctor"} {
		got := v.with(http.MethodGet, path, "", headers("Authorization", "Bearer "+actToken))
		for _, secret := range []string{"secret-of", actToken, readToken, "password of ada"} {
			require.NotContains(t, got.body, secret, path)
		}
	}
	_, err := page.New(page.Config{URL: "amqp://127.0.0.1:1/", AllowActions: true})
	require.ErrorContains(t, err, "AllowActions needs Accounts or Authorize")
	_, err = page.New(page.Config{
		URL:        "amqp://user:secret-of-the-broker@127.0.0.1:1/%zz",
		Management: "ftp://u:secret-of-the-api@h",
		Accounts: []page.Account{
			{Name: "a", Secret: "secret", Role: "boss"},
			{Name: "anna", Secret: "a long secret", Role: page.RoleAct},
			{Name: "bert", Secret: "a long secret", Role: page.RoleRead}, // could act as anna
			{Name: "anna", Secret: "another secret", Role: page.RoleRead},
		},
		Masks:    []string{"x"},
		BasePath: "ops", Hosts: []string{"https://a"},
		Authorize: func(*http.Request) (string, page.Role) { return "", "" },
	})
	rig.RequireTexts(t, err, "URL", "account", "mask", "BasePath", "host", "Authorize",
		`"anna" and "bert" have the same secret`, `two accounts have the name "anna"`)
	require.NotContains(t, err.Error(), "secret-of")
}

// Behind a proxy the page is under its path, whether or not the proxy strips it. A header of the
// request changes nothing.
func TestPageUnderAPath(t *testing.T) {
	t.Parallel()
	v := nowhere(t, func(c *page.Config) { c.BasePath = "/ops/millpond/" })
	forged := headers("X-Forwarded-Prefix", "/evil", "X-Forwarded-Host", "evil.example")
	for _, path := range []string{"/ops/millpond/", "/"} {
		got := v.with(http.MethodGet, path, "", forged)
		require.Equal(t, http.StatusOK, got.StatusCode)
		require.Contains(t, got.body, `href="/ops/millpond/dead"`)
		require.NotContains(t, got.body, "evil")
		require.Empty(t, regexp.MustCompile(`(?:href|action|src)="/[^o]`).FindString(got.body))
		require.Contains(t, (&visitor{t, v.server, newBrowser(t)}).get(path).Header.Get("Set-Cookie"),
			"Path=/ops/millpond/;")
	}
	require.Equal(t, http.StatusOK, v.get("/ops/millpond").StatusCode)
	require.Equal(t, http.StatusOK, v.get("/ops/millpond/static/page.css").StatusCode)
	require.Equal(t, http.StatusNotFound, v.get("/ops/millpondx/").StatusCode)
}

// Requests are bounded: bodies, values of filters, and streams.
func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	v := nowhere(t, trusting)
	token := tokenIn(v.get("/doctor").body)
	large := url.Values{"form": {token}, "error": {strings.Repeat("x", 1<<20)}}.Encode()
	got := v.with(http.MethodPost, "/dead/look", large, nil)
	require.Equal(t, http.StatusBadRequest, got.StatusCode)
	for _, query := range []string{
		"error=" + strings.Repeat("x", 2000), strings.Repeat("queue=q&", 1000), "error=/(/",
		"since=yesterday", "header=novalue", "payload=/[/", "header=k=/(/",
	} {
		require.Equal(t, http.StatusBadRequest, v.get("/dead?"+query).StatusCode, query)
	}
	var open []*http.Response
	refused := 0
	for range 140 {
		resp := v.events()
		if resp.StatusCode == http.StatusServiceUnavailable {
			refused++
		}
		open = append(open, resp)
	}
	require.Equal(t, 12, refused)
	require.Equal(t, http.StatusOK, v.get("/").StatusCode, "streams take no place of other requests")
	line, err := bufio.NewReader(open[0].Body).ReadString('\n')
	require.NoError(t, err)
	require.NotEmpty(t, line)
	for _, resp := range open {
		_ = resp.Body.Close()
	}
	rig.WaitFor(t, "a place for a stream", func() bool {
		resp := v.events()
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}
