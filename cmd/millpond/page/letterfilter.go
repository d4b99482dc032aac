package page

import (
	"fmt"
	"html/template"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/operate"
)

// filter chooses dead letters, as the address of a page has it.
type filter struct {
	// Queues are main queues; none means all.
	Queues []string
	// Error, Payload and the values of Headers are part of a text, or /a regular expression/.
	ID, Reason, Handler, Error, Group, Since, Until, Payload string
	// Headers are K=V.
	Headers []string
}

// maxValue and maxValues bound a filter.
const (
	maxValue  = 1000
	maxValues = 50
)

// filterOf reads a filter from an address or a form, and checks it.
func filterOf(values url.Values) (filter, error) {
	get := func(name string) string { return strings.TrimSpace(values.Get(name)) }
	f := filter{
		ID: get("id"), Reason: get("reason"), Handler: get("handler"), Error: get("error"),
		Group: get("group"), Since: get("since"), Until: get("until"), Payload: get("payload"),
		Queues: present(values["queue"]), Headers: present(values["header"]),
	}
	for name, list := range values {
		if len(list) > maxValues || slices.ContainsFunc(list, func(v string) bool {
			return len(v) > maxValue
		}) && slices.Contains(f.names(), name) {
			return filter{}, badRequest("filter %q is too long: use at most %d bytes", name, maxValue)
		}
	}
	_, err := f.operate(time.Now())
	return f, err
}

func (f filter) names() []string {
	return []string{
		"queue", "id", "reason", "handler", "error", "group", "since", "until", "payload", "header",
	}
}

func present(list []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(v string) bool { return v == "" })
}

// values returns the filter as an address has it, in a fixed order.
func (f filter) values() url.Values {
	v := url.Values{}
	for name, value := range map[string]string{
		"id": f.ID, "reason": f.Reason, "handler": f.Handler, "error": f.Error, "group": f.Group,
		"since": f.Since, "until": f.Until, "payload": f.Payload,
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if len(f.Queues) > 0 {
		v["queue"] = f.Queues
	}
	if len(f.Headers) > 0 {
		v["header"] = f.Headers
	}
	return v
}

// query is the filter as the part of an address behind the question mark.
func (f filter) query() string { return f.values().Encode() }

// Address is query for a template.
func (f filter) Address() template.URL { return template.URL(f.query()) }

// Any reports whether the filter says more than the queues.
func (f filter) Any() bool {
	f.Queues = nil
	return len(f.values()) > 0
}

// deep is the part of the filter that needs the messages themselves, which a look does not keep.
func (f filter) deep() filter { return filter{Payload: f.Payload, Headers: f.Headers} }

// With returns the query with another value. It is encoded.
func (f filter) With(name, value string) template.URL {
	v := f.values()
	if v.Set(name, value); value == "" {
		v.Del(name)
	}
	return template.URL(v.Encode())
}

// operate returns the filter for a look at now, without Queues and Payload.
func (f filter) operate(now time.Time) (operate.Filter, error) {
	o := operate.Filter{
		Reason: header.Reason(f.Reason), Handler: f.Handler, Group: f.Group,
	}
	if f.ID != "" {
		o.IDs = []string{f.ID}
	}
	var err error
	if o.Error, o.ErrorPattern, err = textOrPattern("error", f.Error); err != nil {
		return o, err
	}
	if o.Payload, o.PayloadPattern, err = textOrPattern("payload", f.Payload); err != nil {
		return o, err
	}
	if o.Since, err = timeOf("since", f.Since, now); err != nil {
		return o, err
	}
	if o.Until, err = timeOf("until", f.Until, now); err != nil {
		return o, err
	}
	for _, text := range f.Headers {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return o, badRequest("header %q: write name=value, or name=/regular expression/", text)
		}
		exact, pattern, err := textOrPattern("header", value)
		if err != nil {
			return o, err
		}
		if pattern != nil {
			if o.HeaderPatterns == nil {
				o.HeaderPatterns = map[string]*regexp.Regexp{}
			}
			o.HeaderPatterns[key] = pattern
			continue
		}
		if o.Headers == nil {
			o.Headers = map[string]string{}
		}
		o.Headers[key] = exact
	}
	return o, nil
}

// textOrPattern reads a text, or a regular expression between slashes.
func textOrPattern(name, text string) (string, *regexp.Regexp, error) {
	if len(text) < 3 || text[0] != '/' || text[len(text)-1] != '/' {
		return text, nil, nil
	}
	pattern, err := regexp.Compile(text[1 : len(text)-1])
	if err != nil {
		return "", nil, badRequest("%s: %v", name, err)
	}
	return "", pattern, nil
}

// timeOf reads a time in UTC, or a time ago.
func timeOf(name, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil {
		return now.Add(-ago), nil
	}
	for _, layout := range []string{
		time.RFC3339, "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02",
	} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, failure{400, fmt.Errorf(
		"%s %q is no time: write 2026-03-01 12:00 in UTC, or 2h for two hours ago", name, text)}
}
