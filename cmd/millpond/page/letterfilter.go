package page

import (
	"html/template"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/millpond-go/millpond/topology/operate"
)

// filter chooses dead letters, as the address of a page has it: by the names and values that
// operate.Filter.Set takes, and by the names of main queues. It is not changed once it is made.
type filter map[string][]string

// conditions are the names of a filter, and maxValue and maxValues bound it.
var conditions = []string{
	queueName, "id", "for", "reason", "handler", "error", "group", "since", "until", "payload",
	"header",
}

const (
	queueName = "queue"
	maxValue  = 1000
	maxValues = 50
)

// filterOf reads a filter from an address or a form, and checks it.
func filterOf(values url.Values, more ...string) (filter, error) {
	f := filter{}
	for _, name := range append(more, conditions...) {
		for _, value := range values[name] {
			if value = strings.TrimSpace(value); value != "" {
				f[name] = append(f[name], value)
			}
			if len(f[name]) > maxValues || len(value) > maxValue {
				return filter{}, badRequest("filter %q is too long: use at most %d bytes", name, maxValue)
			}
		}
	}
	_, err := f.operate(time.Now())
	return f, err
}

// Get returns the first value of a condition.
func (f filter) Get(name string) string { return url.Values(f).Get(name) }

// Queues are the main queues; none means all.
func (f filter) Queues() []string { return f[queueName] }

// query is the filter as the part of an address behind the question mark.
func (f filter) query() string { return url.Values(f).Encode() }

// Address is query for a template.
func (f filter) Address() template.URL { return template.URL(f.query()) }

// Any reports whether the filter says more than the queues.
func (f filter) Any() bool { return len(f.exactly()) > 0 }

// exactly is the filter without the queues.
func (f filter) exactly() filter {
	return f.only(func(name string) bool { return name != queueName })
}

// deep is the part of the filter that needs the messages themselves, which a look does not keep.
func (f filter) deep() filter {
	return f.only(func(name string) bool { return name == "payload" || name == "header" })
}

func (f filter) only(is func(name string) bool) filter {
	part := filter{}
	for name, values := range f {
		if is(name) {
			part[name] = values
		}
	}
	return part
}

// With returns the query with another value. It is encoded.
func (f filter) With(name, value string) template.URL {
	f = f.only(func(other string) bool { return other != name })
	if value != "" {
		f[name] = []string{value}
	}
	return f.Address()
}

// operate returns the filter for a look at now, without the queues.
func (f filter) operate(now time.Time) (o operate.Filter, err error) {
	for _, name := range slices.Sorted(maps.Keys(f.exactly())) {
		for _, value := range f[name] {
			if err := o.Set(name, value, now); err != nil {
				return o, badRequest("%v", err)
			}
		}
	}
	return o, nil
}
