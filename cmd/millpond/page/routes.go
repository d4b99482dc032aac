package page

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/millpond-go/millpond/cmd/millpond/page/internal/job"
)

//go:embed static
var static embed.FS

//go:embed templates
var templates embed.FS

// route is a page or a form.
type route struct {
	// pattern is a pattern of http.ServeMux without the base path: "GET /dead", "POST /dead/look".
	// A POST is called with a form that was checked.
	pattern string
	role    Role
	serve   func(w http.ResponseWriter, r *http.Request) error
	// most is the most bytes of the body. Default: maxForm.
	most int64
}

const (
	// maxForm is the most bytes of a form, and requestLimit the time of a request that is no stream.
	// loginLimit is the time in which a login must arrive.
	maxForm      = 64 << 10
	requestLimit = 2 * time.Minute
	loginLimit   = 5 * time.Second
)

func (h *Handler) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for _, list := range [][]route{h.readRoutes(), h.actionRoutes()} {
		for _, r := range list {
			mux.Handle(r.pattern, h.handlerOf(r))
		}
	}
	mux.Handle("GET /static/", http.HandlerFunc(h.asset))
	mux.Handle("/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.fail(w, r, http.StatusNotFound, errors.New("there is no such page"))
	}))
	return mux
}

func (h *Handler) readRoutes() []route {
	return []route{
		{pattern: "GET /{$}", role: RoleRead, serve: h.now},
		{pattern: "GET /events", role: RoleRead, serve: h.events},
		{pattern: "GET /queue", role: RoleRead, serve: h.queue},
		{pattern: "GET /history", role: RoleRead, serve: h.chart},
		{pattern: "GET /brakes", role: RoleRead, serve: h.brakes},
		{pattern: "GET /dead", role: RoleRead, serve: h.dead},
		{pattern: "POST /dead/look", role: RoleRead, serve: h.lookDead},
		{pattern: "GET /letter", role: RoleRead, serve: h.letter},
		{pattern: "POST /letter/look", role: RoleRead, serve: h.lookLetter},
		{pattern: "POST /letter/download", role: RoleRead, serve: h.download},
		{pattern: "GET /waiting", role: RoleRead, serve: h.waiting},
		{pattern: "POST /waiting/look", role: RoleRead, serve: h.lookWaiting},
		{pattern: "POST /order/look", role: RoleRead, serve: h.lookOrder},
		{pattern: "GET /stranded", role: RoleRead, serve: h.stranded},
		{pattern: "POST /stranded/look", role: RoleRead, serve: h.lookStranded},
		{pattern: "GET /verify", role: RoleRead, serve: h.verify},
		{pattern: "POST /verify/look", role: RoleRead, serve: h.lookVerify},
		{pattern: "GET /doctor", role: RoleRead, serve: h.doctor},
		{pattern: "POST /doctor/look", role: RoleAct, serve: h.lookDoctor},
		{pattern: "POST /logout", role: RoleRead, serve: h.logout},
	}
}

// handlerOf checks who may call a route.
func (h *Handler) handlerOf(route route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := visitOf(r).who
		if route.role == RoleAct && !h.mayAct(who) {
			h.fail(w, r, http.StatusForbidden, fmt.Errorf("%q may only read here: "+
				"start millpond serve with --allow-actions, and use an account that may act", who.name))
			return
		}
		if r.Method == http.MethodPost {
			r.Body = http.MaxBytesReader(w, r.Body, cmp.Or(route.most, maxForm))
			if err := r.ParseForm(); err != nil {
				h.fail(w, r, http.StatusBadRequest, fmt.Errorf("the form cannot be read: %w", err))
				return
			}
			if err := h.checkForm(r, who); err != nil {
				h.fail(w, r, http.StatusForbidden, err)
				return
			}
		}
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the request was read
		if err := route.serve(w, r); err != nil {
			h.fail(w, r, statusOf(err), err)
		}
	})
}

func (h *Handler) mayAct(who identity) bool { return h.config.AllowActions && who.role == RoleAct }

// visit is a request that was let in.
type visit struct {
	who    identity
	nonce  string
	cookie string
}

type visitKey struct{}

func visitOf(r *http.Request) visit {
	v, _ := r.Context().Value(visitKey{}).(visit)
	return v
}

// ServeHTTP answers a request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, known := h.guard.who(r)
	places := h.requests
	if !known {
		places = h.outside
	}
	leave := sync.OnceFunc(func() { <-places })
	select {
	case places <- struct{}{}:
		defer leave()
	default:
		http.Error(w, "too many requests at once: try again", http.StatusServiceUnavailable)
		return
	}
	if !known { // a stranger that reads no answer does not keep the place
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeLimit))
	}
	v := visit{nonce: randomText(), cookie: cookieOf(r)}
	secure(w.Header(), v.nonce)
	if r.TLS != nil {
		w.Header().Set("Strict-Transport-Security", "max-age=31536000")
	}
	in := func() *http.Request { return r.WithContext(context.WithValue(r.Context(), visitKey{}, v)) }
	if !h.guard.allowsHost(r.Host) {
		h.fail(w, in(), http.StatusMisdirectedRequest, fmt.Errorf("this page is not known as %q: "+
			"start millpond serve with --host and that name", r.Host))
		return
	}
	if err := h.guard.fromElsewhere(r); err != nil {
		h.fail(w, in(), http.StatusForbidden, err)
		return
	}
	path := r.URL.Path
	if path == h.base {
		http.Redirect(w, r, h.base+"/", http.StatusPermanentRedirect)
		return
	}
	if strings.HasPrefix(path, h.base+"/") { // a proxy may have stripped it
		path = path[len(h.base):]
	}
	if !known && !strings.HasPrefix(path, "/static/") {
		if who, known = h.guard.admits(r); !known {
			h.login(w, in(), path)
			return
		}
		leave()
		ctx := context.WithValue(r.Context(), admittedKey{}, who)
		h.ServeHTTP(w, r.WithContext(ctx)) // in a place of the others
		return
	}
	v.who = who
	if known && v.cookie == "" { // a page elsewhere may ask for a file of /static/ without the cookie
		v.cookie = randomText()
		h.setCookie(w, r, v.cookie)
	}
	if r.Context().Value(admittedKey{}) != nil {
		h.guard.begin(sessionOf(r, v.cookie), who)
	}
	r = in()
	r.URL.Path, r.URL.RawPath = path, ""
	if known && path != "/events" {
		ctx, cancel := context.WithTimeout(r.Context(), requestLimit)
		defer cancel()
		r = r.WithContext(ctx)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(requestLimit + writeLimit))
	}
	h.mux.ServeHTTP(w, r)
}

// secure sets the headers that every answer has.
func secure(header http.Header, nonce string) {
	for name, value := range map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'nonce-" + nonce +
			"'; style-src 'nonce-" + nonce + "'; img-src 'self'; connect-src 'self'; " +
			"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
		"Referrer-Policy":              "no-referrer",
		"Cache-Control":                "no-store",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Permissions-Policy":           "camera=(), geolocation=(), microphone=()",
	} {
		header.Set(name, value)
	}
}

// login asks for an account.
func (h *Handler) login(w http.ResponseWriter, r *http.Request, path string) {
	if h.guard.authorize != nil {
		h.fail(w, r, http.StatusForbidden, errors.New("the service of this page does not let you in"))
		return
	}
	if !h.guard.byForm() {
		w.Header().Set("WWW-Authenticate", `Basic realm="millpond", charset="UTF-8"`)
		h.fail(w, r, http.StatusUnauthorized, errors.New("name and password are needed"))
		return
	}
	wrong := r.Header.Get("Authorization") != ""
	if r.Method == http.MethodPost && path == "/login" {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(loginLimit))
		wrong = true
		parsed := r.ParseForm() == nil
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		if parsed {
			who, ok := h.guard.check(r.Context(), strings.TrimSpace(r.PostForm.Get("name")),
				strings.TrimSpace(r.PostForm.Get("secret")))
			if ok {
				cookie := randomText()
				r.Header.Del("Authorization")
				h.guard.begin(sessionOf(r, cookie), who)
				h.setCookie(w, r, cookie)
				http.Redirect(w, r, h.base+"/", http.StatusSeeOther)
				return
			}
		}
	}
	w.Header().Set("WWW-Authenticate", "Bearer")
	h.render(w, r, http.StatusUnauthorized, "login", view{Title: "Log in", Data: wrong})
}

func (h *Handler) logout(w http.ResponseWriter, r *http.Request) error {
	h.guard.finish(r)
	h.setCookie(w, r, randomText())
	return h.to(w, r, "/")
}

// to sends the browser to another page after a form.
func (h *Handler) to(w http.ResponseWriter, r *http.Request, path string) error {
	http.Redirect(w, r, h.base+path, http.StatusSeeOther)
	return nil
}

// view is the data of every template.
type view struct {
	// Title and Nav, the navigation's entry, are set by the page; Data is its own.
	Title, Nav string
	Data       any
	// Count is the number of things on the page. The title of the tab shows it.
	Count int
	// Running are the looks that the page waits for.
	Running []*task

	Base, Nonce string
	// Who is empty before a login. Then the page has nothing of the broker and of actions.
	Who, Form, Vhost string
	MayAct, Login    bool
	MayDiscard       bool
	// Address is the path and the query of the page, for forms that return to it.
	Address string
	Now     time.Time
	// Jobs are the actions that every page shows, Actions says that there may be some, and Follow that
	// the page is loaded again and again where there is no script.
	Jobs            []job.Action
	Actions, Follow bool
}

// render writes a page, whole or not at all.
func (h *Handler) render(w http.ResponseWriter, r *http.Request, status int, name string, v view) {
	visit := visitOf(r)
	v.Base, v.Nonce, v.Who = h.base, visit.nonce, visit.who.name
	v.Address, v.Now = r.URL.RequestURI(), time.Now()
	if v.Who != "" {
		v.Vhost, v.Form = h.vhost, h.formToken(visit.cookie, visit.who)
		v.MayAct, v.Login = h.mayAct(visit.who), h.guard.byForm()
		v.MayDiscard = v.MayAct && h.config.StateFolder != ""
		v.Jobs, v.Actions = h.running(), h.jobs != nil
	}
	var page bytes.Buffer
	if err := h.pages.ExecuteTemplate(&page, name, v); err != nil {
		http.Error(w, "the page cannot be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(page.Bytes())
}

// show renders a page that was found.
func (h *Handler) show(w http.ResponseWriter, r *http.Request, name string, v view) error {
	h.render(w, r, http.StatusOK, name, v)
	return nil
}

// failure is an error with an HTTP status.
type failure struct {
	status int
	error
}

func (f failure) Unwrap() error { return f.error }

// badRequest is an error about the request.
func badRequest(format string, args ...any) error {
	return failure{http.StatusBadRequest, fmt.Errorf(format, args...)}
}

func notFound(format string, args ...any) error {
	return failure{http.StatusNotFound, fmt.Errorf(format, args...)}
}

func statusOf(err error) int {
	var f failure
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &f):
		return f.status
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadGateway // the broker
}

// failed is an error with the ways out.
type failed struct {
	Text, Queue    string
	Actions, Typed bool
}

// fail shows an error.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, status int, err error) {
	f := failed{Text: err.Error(), Typed: r.Method == http.MethodPost}
	title := http.StatusText(status)
	switch status {
	case http.StatusBadRequest:
		title = "This cannot be done"
	case http.StatusConflict:
		f.Actions = h.jobs != nil
	}
	if status != http.StatusNotFound {
		f.Queue = r.URL.Query().Get(queueName)
	}
	h.render(w, r, status, "failed", view{Title: title, Data: f})
}

// asset serves the style sheet and the script.
func (h *Handler) asset(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-cache")
	http.FileServerFS(static).ServeHTTP(w, r)
}
