package page

import (
	"cmp"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millpond-go/millpond/cmd/millpond/internal/lettertext"
	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/cmd/millpond/page/internal/job"
)

// formReader reads the fields of a form and keeps the first error.
type formReader struct {
	url.Values
	err error
}

func (f *formReader) text(name string) string { return strings.TrimSpace(f.Get(name)) }

func (f *formReader) refuse(name, want string) {
	if f.err == nil {
		f.err = badRequest("%s %q: write %s", name, f.text(name), want)
	}
}

func (f *formReader) number(name string) int {
	n, err := strconv.Atoi(cmp.Or(f.text(name), "0"))
	if err != nil || n < 0 {
		f.refuse(name, "a number, such as 3")
	}
	return n
}

func (f *formReader) percent(name string) float64 {
	text := strings.TrimSpace(strings.TrimSuffix(cmp.Or(f.text(name), "0"), "%"))
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n >= 0) || n > 1e9 {
		f.refuse(name, "a number, such as 5")
	}
	return n / 100
}

// shared reads a field as the tool reads its flag.
func shared[T any](f *formReader, name string, read func(string) (T, error)) T {
	value, err := read(f.text(name))
	if err != nil && f.err == nil {
		f.err = badRequest("%s %v", name, err)
	}
	return value
}

func (f *formReader) duration(name string) time.Duration {
	d, err := time.ParseDuration(cmp.Or(f.text(name), "0"))
	if err != nil || d < 0 {
		f.refuse(name, "a time, such as 30s or 2m")
	}
	return d
}

// chosenRows returns a form with the rows that are meant: the ticked ones, or the one whose button
// was pressed, which has its conditions in the address.
func chosenRows(r *http.Request) (url.Values, error) {
	values, row := maps.Clone(r.PostForm), r.URL.Query()
	for _, name := range []string{"picked", "kind", queueName, "for", "id", "group", "all"} {
		if row.Has(name) {
			values[name] = row[name]
		}
	}
	if name := values.Get("picked"); name != "" && !values.Has(name) {
		return nil, badRequest("no row is ticked: go back and tick the rows that are meant")
	}
	if values.Get(queueName) == "" && values.Get("again") == "" {
		return nil, badRequest("an action works on one queue: search for queue:NAME first")
	}
	return values, nil
}

// requestOf reads a form.
func (h *Handler) requestOf(values url.Values) (r job.Request, err error) {
	f := &formReader{Values: values}
	if again := f.Get("again"); again != "" { // the rehearsed action with other options
		found, err := h.jobs.Rehearsal(again)
		if err != nil {
			return r, err
		}
		r = found.Request
	} else if r, err = h.chosenBy(f); err != nil {
		return r, err
	}
	r.To, r.Rate = f.text("to"), shared(f, "rate", overview.Rate)
	switch r.Kind {
	case job.Replay:
		r.Canary, r.StopAt = f.number("canary"), f.percent("stop-at")
		r.Settle, r.Watch = f.duration("settle"), f.duration("watch")
		r.MaxReplays = f.number("max-replays")
		r.Steps = shared(f, "ramp", overview.Steps)
		if r.To != "" && r.To != r.Queue { // nothing is watched there
			r.Canary, r.Steps, r.StopAt = 0, nil, 0
		}
	case job.ReleaseKey, job.ReplayKey:
		r.Mark = f.text("mark")
		r.Key, err = h.keyOf(r.Queue, f.text("key"))
		r.KeyText = h.shownKey(r.Key)
	case job.Edit:
		// Browsers write line ends as CR LF. A payload with CR is not written as text.
		text := strings.ReplaceAll(f.Get("text"), "\r\n", "\n")
		r.Change = &job.Change{
			Letter: f.text("letter"), Text: text, NotJSON: f.Get("not-json") != "",
		}
	}
	return r, cmp.Or(f.err, err)
}

// chosenBy reads what a form is about.
func (h *Handler) chosenBy(f *formReader) (r job.Request, err error) {
	chosen, err := filterOf(f.Values, append([]string{"delay"}, conditions...))
	if err != nil {
		return r, err
	}
	r.Kind, r.Queue, r.All = job.Kind(f.text("kind")), f.text(queueName), f.Get("all") != ""
	if r.Filter, err = chosen.operate(time.Now()); err != nil {
		return r, err
	}
	if len(h.masks) > 0 && (r.Filter.Payload != "" || r.Kind == job.Edit) {
		return r, badRequest("payloads are masked here: nothing can be chosen by its payload or edited")
	}
	return r, h.refuseKeys(r.Filter)
}

// beginEdit looks at a letter, and keeps its text for the page on which it is edited.
func (h *Handler) beginEdit(w http.ResponseWriter, r *http.Request) error {
	if len(h.masks) > 0 {
		return badRequest("the letter cannot be edited: payloads are masked here")
	}
	v, src, err := h.letterOf(r.Context(), r.Form)
	if err != nil {
		return err
	}
	l, err := h.fetchNow(r.Context(), v, src)
	if err != nil {
		return err
	}
	queue := l.Queue
	if !slices.Contains(src.Mains, queue) {
		queue = src.Mains[0]
	}
	content, _ := lettertext.Of(l.Delivery.Headers, l.Delivery.Body)
	text, err := content.Text()
	if err != nil {
		return err
	}
	if len(text) > maxEdited {
		return badRequest("the letter has %d bytes as text, and a page edits at most %d: use millpond "+
			"dead replay --edit", len(text), maxEdited)
	}
	page := "/edit?" + r.URL.Query().Encode()
	h.forms.keep(visitOf(r).who.name, page, url.Values{
		"queue": {queue}, "letter": {lettertext.Identity(l.Delivery)}, "id": {l.ID}, "text": {text},
	})
	return h.to(w, r, page)
}

// editPage shows the form of an edit that has begun.
func (h *Handler) editPage(w http.ResponseWriter, r *http.Request) error {
	values := h.forms.of(r)
	if values == nil {
		return h.to(w, r, "/letter?"+r.URL.RawQuery)
	}
	return h.show(w, r, "edit", view{Title: "Edit a letter", Nav: "dead", Data: values})
}

// maxEdited is the largest text of a letter that can be edited in a page.
const maxEdited = 1 << 20
