package page

import (
	"cmp"
	"html/template"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/millpond-go/millpond/topology/operate"
)

// filter chooses dead letters, as the address of a page has it: by the names and values that
// operate.Filter.Set takes, and by the names of main queues. It is not changed once it is made.
type filter map[string][]string

// conditions are the names of a filter of letters, and waitConditions of messages that wait.
// maxValue and maxValues bound it.
var (
	conditions = []string{
		queueName, "id", "for", "reason", "handler", "error", "group", "since", "until", "payload",
		"header",
	}
	waitConditions = []string{queueName, "id", "error", "delay"}
)

const (
	queueName = "queue"
	maxValue  = 1000
	maxValues = 50
)

// filterOf reads a filter from an address or a form, and checks it. Words that were searched are
// conditions of it, too.
func filterOf(values url.Values, names []string) (filter, error) {
	f := filter{}
	values = searched(values, names)
	for _, name := range names {
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

var searchWords = regexp.MustCompile(`(?:(\w+):)?("[^"]*"|\S+)`)

// searched returns the values with the words of the search field, q: name:value is a condition,
// with quotes where the value has spaces, and the other words are one text of the error.
func searched(values url.Values, names []string) url.Values {
	words, text := searchWords.FindAllStringSubmatch(values.Get("q"), -1), []string(nil)
	values = maps.Clone(values)
	for _, word := range words {
		name, value := word[1], strings.Trim(word[2], `"`)
		switch {
		case !slices.Contains(names, name):
			text = append(text, word[0])
		case !repeats[name]:
			values[name] = []string{value}
		case !slices.Contains(values[name], value):
			values[name] = append(slices.Clip(values[name]), value)
		}
	}
	if len(text) > 0 {
		values["error"] = []string{strings.Trim(strings.Join(text, " "), `"`)}
	}
	return values
}

// repeats are the conditions that a search adds to those of the same name; others take their place.
var repeats = map[string]bool{"id": true, "for": true, "group": true, "header": true}

// search is the search field of a page, with the conditions that are set.
type search struct {
	Path   string
	Filter filter
	Hint   string   // for the field
	Offers []string // that the field completes
	Chips  []chip
}

// chip is a condition that is set, with the query of the page without it.
type chip struct {
	Name, Value string
	Without     template.URL
}

func (h *Handler) searchOf(path string, f filter, hint string) search {
	s := search{Path: path, Filter: f, Hint: hint}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		for i, value := range f[name] {
			c := chip{name, value, f.with(name, slices.Delete(slices.Clone(f[name]), i, i+1)...).Address()}
			if name == "group" {
				c.Name, c.Value = "cause", cmp.Or(h.letters.cause(value), value)
			}
			s.Chips = append(s.Chips, c)
		}
	}
	return s
}

// offer adds a condition to those that the field completes, unless its value looks like another.
func (s *search) offer(name, value string) {
	offer := name + `:"` + value + `"`
	if value != "" && value == visible(value, false) && len(s.Offers) < maxGroups &&
		!strings.Contains(value, `"`) && !slices.Contains(s.Offers, offer) {
		s.Offers = append(s.Offers, offer)
	}
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
func (f filter) exactly() filter { return f.Less(queueName) }

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
func (f filter) With(name, value string) template.URL { return f.with(name, value).Address() }

// Less is the filter without some conditions.
func (f filter) Less(names ...string) filter {
	return f.only(func(name string) bool { return !slices.Contains(names, name) })
}

func (f filter) with(name string, values ...string) filter {
	f = f.Less(name)
	if len(values) > 0 && values[0] != "" {
		f[name] = values
	}
	return f
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
