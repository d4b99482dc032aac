package page

import (
	"cmp"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/millpond-go/millpond/cmd/millpond/internal/lettertext"
	"github.com/millpond-go/millpond/cmd/millpond/page/internal/job"
	"github.com/millpond-go/millpond/topology/operate"
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

func (f *formReader) decimal(name, unit string) float64 {
	n, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(
		cmp.Or(f.text(name), "0"), unit)), 64)
	if err != nil || !(n >= 0) || n > 1e9 {
		f.refuse(name, "a number, such as 5")
	}
	return n
}

func (f *formReader) duration(name string) time.Duration {
	d, err := time.ParseDuration(cmp.Or(f.text(name), "0"))
	if err != nil || d < 0 {
		f.refuse(name, "a time, such as 30s or 2m")
	}
	return d
}

// requestOf reads a form.
func (h *Handler) requestOf(values url.Values) (job.Request, error) {
	f := &formReader{Values: values}
	chosen, err := filterOf(values, "delay")
	if err != nil {
		return job.Request{}, err
	}
	o, err := chosen.operate(time.Now())
	if err != nil {
		return job.Request{}, err
	}
	if err := h.refuseKeys(o); err != nil {
		return job.Request{}, err
	}
	r := job.Request{
		Kind: job.Kind(f.text("kind")), Queue: f.text("queue"), Filter: o,
		All: f.Get("all") != "", To: f.text("to"), Rate: f.decimal("rate", "/s"),
	}
	if len(h.masks) > 0 && (o.Payload != "" || r.Kind == job.Edit) {
		return r, badRequest("payloads are masked here: nothing can be chosen by its payload or edited")
	}
	switch r.Kind {
	case job.Replay:
		r.Canary, r.StopAt = f.number("canary"), f.decimal("stop-at", "%")/100
		r.Settle, r.Watch = f.duration("settle"), f.duration("watch")
		r.MaxReplays = f.number("max-replays")
		for _, text := range strings.FieldsFunc(f.Get("ramp"), func(c rune) bool {
			return c == ',' || c == ' '
		}) {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 {
				f.refuse("ramp", "the sizes of the steps, such as 1, 10, 100")
			}
			r.Steps = append(r.Steps, n)
		}
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
		r.Change = &job.Change{Letter: f.text("letter"), Text: text}
	}
	if f.err != nil {
		err = f.err
	}
	return r, err
}

// editView is the form of an edit.
type editView struct{ Queue, Letter, ID, Text string }

// editPage looks at a letter and shows it for an edit.
func (h *Handler) editPage(w http.ResponseWriter, r *http.Request) error {
	f := &formReader{Values: r.PostForm}
	_, query, _ := strings.Cut(f.text("page"), "?")
	values, err := url.ParseQuery(query)
	if err != nil || len(h.masks) > 0 {
		return badRequest("the letter cannot be edited: payloads are masked here, " +
			"or the address is wrong")
	}
	id, dead := values.Get("id"), cmp.Or(values.Get("dead"), values.Get("queue"))
	position, _ := strconv.Atoi(values.Get("position"))
	for _, main := range h.watcher.sight(r.Context()).Vhost.Mains {
		plan, err := h.planOf(r.Context(), main.Name)
		if err != nil || plan.Dead.RoutingKey != dead && main.Name != dead {
			continue
		}
		op, err := h.connected(r.Context())
		if err != nil {
			return err
		}
		var found *operate.Letter
		chosen := operate.Filter{IDs: []string{id}, Match: func(l operate.Letter) bool {
			return l.Queue == "" || l.Queue == main.Name
		}}
		for l, err := range op.Dead(r.Context(), plan, chosen, 1000) {
			if err != nil {
				return err
			}
			if found == nil || l.Position == position { // the ID need not be unique
				found = &l
			}
		}
		if found != nil {
			return h.showEdit(w, r, main.Name, *found)
		}
	}
	return notFound("there is no letter %q in queue %q any more: look again", id, dead)
}

// maxEdited is the largest text of a letter that can be edited in a page.
const maxEdited = 1 << 20

func (h *Handler) showEdit(
	w http.ResponseWriter, r *http.Request, queue string, l operate.Letter,
) error {
	content, _ := lettertext.Of(l.Delivery.Headers, l.Delivery.Body)
	text, err := content.Text()
	if err != nil {
		return err
	}
	if len(text) > maxEdited {
		return badRequest("the letter has %d bytes as text, and a page edits at most %d: use millpond "+
			"dead replay --edit", len(text), maxEdited)
	}
	return h.show(w, r, "edit", view{
		Title: "Edit a letter", Nav: "dead",
		Data: editView{queue, lettertext.Identity(l.Delivery), l.ID, text},
	})
}
