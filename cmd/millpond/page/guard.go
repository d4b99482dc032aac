package page

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Role bounds the actions of an account.
type Role string

const (
	// RoleRead may look at everything.
	RoleRead Role = "read"
	// RoleAct may also change queues, if Config.AllowActions is set.
	RoleAct Role = "act"
)

// Account is a person or a program that may use the page.
type Account struct {
	// Name is the user of basic authentication, and the name in the audit log.
	Name string
	// Secret is the password, or the token. At least 12 bytes.
	Secret string
	// Token says that Secret alone is enough: "Authorization: Bearer", or the form of the page.
	Token bool
	// Role is RoleRead or RoleAct.
	Role Role
	// Once makes Secret good for one login, and is called with the secret of the next one. Default:
	// Secret is good for any number of logins.
	Once func(next string)
}

// identity names the account of a request.
type identity struct {
	name string
	role Role
}

const (
	minSecret = 12
	// guessPause passes before a secret is compared, and guesses of them at the same time.
	guessPause = 500 * time.Millisecond
	guesses    = 4
	// maxSessions and sessionLife bound the logins, and the headers whose secret is known as right.
	maxSessions = 1000
	sessionLife = 12 * time.Hour
)

// guard decides which requests are answered.
type guard struct {
	hosts    []string
	accounts []Account
	// authorize decides in place of accounts; it may be nil.
	authorize func(*http.Request) (string, Role)

	cross    *http.CrossOriginProtection
	guessing chan struct{}

	mu       sync.Mutex // of sessions, and of the secrets of accounts
	sessions map[[sha256.Size]byte]session
}

type session struct {
	identity
	until time.Time
}

func newGuard(config Config) (*guard, error) {
	g := &guard{
		accounts: slices.Clone(config.Accounts), authorize: config.Authorize,
		cross: http.NewCrossOriginProtection(), guessing: make(chan struct{}, guesses),
		sessions: map[[sha256.Size]byte]session{},
	}
	var problems []error
	switch accounts := len(g.accounts) > 0; {
	case g.authorize != nil && accounts:
		problems = append(problems, errors.New("set Accounts or Authorize, not both"))
	case g.authorize == nil && !accounts && config.AllowActions:
		problems = append(problems, errors.New("AllowActions needs Accounts or Authorize"))
	}
	for _, host := range config.Hosts {
		if host == "" || strings.ContainsAny(host, "/: *@") {
			problems = append(problems, fmt.Errorf("host %q: write the name alone, as in ops.example.com",
				host))
		}
		g.hosts = append(g.hosts, strings.ToLower(host))
	}
	for i, a := range g.accounts {
		switch {
		case a.Name == "" || strings.ContainsAny(a.Name, ":\r\n"):
			problems = append(problems, fmt.Errorf("account %d: its name is empty or has a colon", i+1))
		case len(a.Secret) < minSecret:
			problems = append(problems, fmt.Errorf("account %q: its secret has less than %d bytes",
				a.Name, minSecret))
		case a.Role != RoleRead && a.Role != RoleAct:
			problems = append(problems, fmt.Errorf("account %q: role %q is neither read nor act",
				a.Name, a.Role))
		}
		for _, b := range g.accounts[:i] {
			switch {
			case a.Secret == b.Secret:
				problems = append(problems, fmt.Errorf("accounts %q and %q have the same secret, so one "+
					"could act in the name of the other", b.Name, a.Name))
			case a.Name == b.Name:
				problems = append(problems, fmt.Errorf("two accounts have the name %q", a.Name))
			}
		}
	}
	return g, errors.Join(problems...)
}

// allowsHost reports whether a Host header is an IP address or a known name. An attacker could
// point any other name at this address: DNS rebinding needs such a name.
func (g *guard) allowsHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || host == "localhost" {
		return true
	}
	return slices.Contains(g.hosts, host)
}

// fromElsewhere says why a request comes from another site; nil if it does not.
func (g *guard) fromElsewhere(r *http.Request) error {
	site, mode := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Sec-Fetch-Mode")
	read := r.Method == http.MethodGet || r.Method == http.MethodHead
	if read && (site == "cross-site" || site == "same-site") && mode != "navigate" {
		return errors.New("another site asks for it")
	}
	return g.cross.Check(r)
}

// same compares in a time that does not depend on the texts.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// who returns the account of a request, at once.
func (g *guard) who(r *http.Request) (identity, bool) {
	if g.authorize != nil {
		name, role := g.authorize(r)
		if name == "" || role != RoleRead && role != RoleAct {
			return identity{}, false
		}
		return identity{name, role}, true
	}
	if len(g.accounts) == 0 {
		return identity{"local", RoleRead}, true
	}
	if who, ok := r.Context().Value(admittedKey{}).(identity); ok {
		return who, true
	}
	key := sessionOf(r, cookieOf(r))
	g.mu.Lock()
	defer g.mu.Unlock()
	s, ok := g.sessions[key]
	if !ok || time.Now().After(s.until) {
		return identity{}, false
	}
	return s.identity, true
}

// admittedKey is the key of the identity of a request whose header was right.
type admittedKey struct{}

// sessionOf returns the key of the session of a request with that cookie, which is random: a guess
// finds no session, neither by a cookie nor by a header, and so waits for the pause.
func sessionOf(r *http.Request, cookie string) [sha256.Size]byte {
	header := ""
	if _, _, ok := secretIn(r); ok {
		header = r.Header.Get("Authorization")
	}
	return sha256.Sum256([]byte(cookie + "\x00" + header))
}

// secretIn returns the name and the secret in the header of a request.
func secretIn(r *http.Request) (name, secret string, ok bool) {
	if name, secret, ok = r.BasicAuth(); !ok {
		secret, ok = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	return name, secret, ok
}

// admits returns the account of the header of a request, if its secret is right.
func (g *guard) admits(r *http.Request) (who identity, ok bool) {
	name, secret, ok := secretIn(r)
	if !ok || g.authorize != nil {
		return who, false
	}
	return g.check(r.Context(), name, secret)
}

// check returns the account with this secret. A token needs no name. It compares after a pause, so
// that a guess which does not wait for its answer learns nothing. The pause ends with the request.
func (g *guard) check(ctx context.Context, name, secret string) (found identity, ok bool) {
	select {
	case g.guessing <- struct{}{}:
		defer func() { <-g.guessing }()
	case <-ctx.Done():
		return identity{}, false
	}
	select {
	case <-time.After(guessPause):
	case <-ctx.Done():
		return identity{}, false
	}
	spent := func() {}
	g.mu.Lock()
	for i, a := range g.accounts {
		right, named := same(a.Secret, secret), same(a.Name, name) || a.Token && name == ""
		if right && named {
			found, ok = identity{a.Name, a.Role}, true
			if a.Once != nil {
				next := rand.Text()
				g.accounts[i].Secret, spent = next, func() { a.Once(next) }
			}
		}
	}
	g.mu.Unlock()
	spent()
	return found, ok
}

// begin makes a session. The oldest one ends if there are too many.
func (g *guard) begin(key [sha256.Size]byte, who identity) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.sessions) >= maxSessions {
		var oldest [sha256.Size]byte
		until := time.Now().Add(2 * sessionLife)
		for key, s := range g.sessions {
			if s.until.Before(until) {
				oldest, until = key, s.until
			}
		}
		delete(g.sessions, oldest)
	}
	g.sessions[key] = session{who, time.Now().Add(sessionLife)}
}

func (g *guard) finish(r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.sessions, sessionOf(r, cookieOf(r)))
}

// byForm reports whether there are tokens, which a browser asks for with the form of the page.
func (g *guard) byForm() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.accounts, func(a Account) bool { return a.Token })
}

func randomText() string { return rand.Text() + rand.Text() }

// cookieName has the port, because browsers send a cookie to every port of a host.
func cookieName(r *http.Request) string {
	if _, port, err := net.SplitHostPort(r.Host); err == nil {
		return "millpond-" + port
	}
	return "millpond"
}

func cookieOf(r *http.Request) string {
	c, err := r.Cookie(cookieName(r))
	if err != nil {
		return ""
	}
	return c.Value
}

// setCookie gives the browser a cookie that no script and no other site can use.
func (h *Handler) setCookie(w http.ResponseWriter, r *http.Request, value string) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName(r), Value: value, Path: h.base + "/", HttpOnly: true,
		SameSite: http.SameSiteStrictMode,
		// A false header only spoils the cookie of the browser that sends it.
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
	})
}

// formToken returns the token of forms for a cookie and an account. A page of another site can read
// neither.
func (h *Handler) formToken(cookie string, who identity) string {
	mac := hmac.New(sha256.New, h.key)
	mac.Write([]byte(cookie + "\x00" + who.name))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// checkForm returns an error unless the form of a request was made by this page for this account.
func (h *Handler) checkForm(r *http.Request, who identity) error {
	cookie := cookieOf(r)
	if cookie == "" || !same(h.formToken(cookie, who), r.PostFormValue("form")) {
		return errors.New("the form was not made by this page, or the server was started anew since: " +
			"go back, load the page again and repeat")
	}
	return nil
}
