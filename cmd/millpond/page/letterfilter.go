package page

import (
	"html/template"
	"net/url"
	"slices"
	"strings"
	"time"

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

// operate returns the filter for a look at now, without Queues.
func (f filter) operate(now time.Time) (operate.Filter, error) {
	var o operate.Filter
	for name, list := range f.values() {
		for _, value := range list {
			if name == "queue" {
				continue
			}
			if err := o.Set(name, value, now); err != nil {
				return o, badRequest("%v", err)
			}
		}
	}
	return o, nil
}
