package middleware

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// WithErrorText sets what is written of a handler's error: into the headers of
// the message, its history and the log. Whoever may read a queue reads it, and an
// error often quotes what it failed on; RedactURLs takes the URLs out. text is
// called once for each failure, with the error as the handler returned it or a
// *PanicError; what it returns is cut as any text. Where it panics the error's type
// stands instead.
//
// It changes nothing about classifiers, policies and hooks, which see the error
// itself. Nil is an error. Without it the text is that of Error, of a panic its
// value, never a stack.
func WithErrorText(text func(error) string) Option {
	return func(s *settings) {
		if text == nil {
			s.refuse("WithErrorText: text is nil")
			return
		}
		s.errorText = text
	}
}

// RedactURLs is for WithErrorText: the error's text, in which the URL of each
// *url.Error is cut to scheme and host. net/http quotes the whole URL of a request
// that failed, with whatever secrets are in its path and query.
func RedactURLs(err error) string {
	var urls []string
	walk(err, func(err error) bool {
		if e, ok := as[*url.Error](err); ok && e != nil && e.URL != "" {
			urls = append(urls, e.URL)
		}
		return true
	})
	// The longest first: one may begin as another does.
	slices.SortFunc(urls, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, u := range urls {
		quoted := strconv.Quote(u) // as *url.Error writes it
		pairs = append(pairs, quoted[1:len(quoted)-1], hostOnly(u), u, hostOnly(u))
	}
	return strings.NewReplacer(pairs...).Replace(errorText(err))
}

// hostOnly returns scheme and host of a URL; "…" where it is none.
func hostOnly(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return "…"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String()
}

// textOf returns what is written of a handler's error.
func (s *settings) textOf(err error) (text string) {
	if s.errorText == nil {
		return errorText(err)
	}
	if contain(func() { text = s.errorText(err) }) != nil {
		return fmt.Sprintf("%T whose text is not known", err)
	}
	return text
}
