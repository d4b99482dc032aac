package page

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/millpond-go/millpond/cmd/millpond/internal/lettertext"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/operate"
)

// letterView is the page of one letter.
type letterView struct {
	looked
	// Dead, ID and Position name the letter.
	Dead, ID string
	Position int
	// Found says that the letter is kept; otherwise a look is needed.
	Found   bool
	Letter  operate.Letter
	Payload payload
	Hex     bool
	Headers []headerRow
	Facts   [][]string
	Steps   []attempt
	Missing int // attempts that the history does not have
	Masks   bool
}

// attempt is an entry of the timeline.
type attempt struct {
	header.AttemptError
	// Replayed says that the letter was replayed before this attempt.
	Replayed bool
	// Gap is the time since the attempt before.
	Gap string
}

// Address is the address of the page.
func (v letterView) Address() template.URL { return letterAt(v.Dead, v.ID, v.Position) }

func letterAt(dead, id string, position int) template.URL {
	return template.URL(url.Values{
		"dead": {dead}, "id": {id}, "position": {strconv.Itoa(position)},
	}.Encode())
}

func letterKey(dead, id string, position int) string {
	return fmt.Sprintf("letter\x00%s\x00%s\x00%d", dead, id, position)
}

// letterOf reads which letter an address or a form names.
func (h *Handler) letterOf(ctx context.Context, values url.Values) (*letterView, *source, error) {
	v := &letterView{
		Dead: values.Get("dead"), ID: values.Get("id"), Hex: values.Get("as") == "hex",
		Masks: len(h.masks) > 0,
	}
	var err error
	if v.Position, err = strconv.Atoi(values.Get("position")); err != nil || v.ID == "" {
		return nil, nil, badRequest("the address names no letter: follow a link of the list")
	}
	s, err := h.seen(ctx)
	if err != nil {
		return nil, nil, err
	}
	sources, _ := sourcesOf(s.Vhost, filter{})
	i := slices.IndexFunc(sources, func(s source) bool { return s.Queue == v.Dead })
	if i < 0 {
		return nil, nil, notFound("there is no dead-letter queue %q", v.Dead)
	}
	return v, &sources[i], nil
}

// letter shows a letter.
func (h *Handler) letter(w http.ResponseWriter, r *http.Request) error {
	v, _, err := h.letterOf(r.Context(), r.URL.Query())
	if err != nil {
		return err
	}
	var k kept // of a look at this letter alone, or at its queue
	v.looked, k = lastLook[kept](h, letterKey(v.Dead, v.ID, v.Position))
	known := k.letter.ID != ""
	if !known {
		k, known = h.letters.letter(v.Dead, v.ID, v.Position)
	}
	if known {
		h.fillLetter(v, k)
	}
	return h.show(w, r, "letter", view{
		Title: "Dead letter", Nav: "dead", Data: v, Running: v.Running,
	})
}

func (h *Handler) fillLetter(v *letterView, k kept) {
	l := k.letter
	v.Found, v.Letter, v.Looked = true, l, k.at
	v.Payload = h.payloadOf(l.Delivery.Body, k.size, v.Hex)
	v.Headers = headerRows(h.shownHeaders(l.Delivery.Headers))
	d := l.Delivery
	v.Facts = [][]string{
		{"message id", d.MessageId},
		{"exchange now", d.Exchange},
		{"routing key now", d.RoutingKey},
		{"first exchange", l.OriginExchange},
		{"first routing key", l.OriginRoutingKey},
	}
	v.Facts = append(v.Facts, lettertext.Properties(d)...)
	var before time.Time
	last := 0
	for _, e := range l.History {
		a := attempt{AttemptError: e, Replayed: e.Attempt <= last && last > 0}
		if !before.IsZero() && !e.At.IsZero() {
			a.Gap = about(e.At.Sub(before))
		}
		last, before = e.Attempt, e.At
		v.Steps = append(v.Steps, a)
	}
	if l.Replays == 0 {
		v.Missing = max(l.Attempts-len(l.History), 0)
	}
}

// lookLetter looks at one letter.
func (h *Handler) lookLetter(w http.ResponseWriter, r *http.Request) error {
	v, src, err := h.letterOf(r.Context(), r.Form)
	if err != nil {
		return err
	}
	return h.lookAndShow(w, r, letterKey(v.Dead, v.ID, v.Position), "/letter?"+string(v.Address()),
		func(ctx context.Context, o *operate.Operator, note func(string)) (any, error) {
			l, err := fetch(ctx, o, src, v, note)
			if err != nil {
				return nil, err
			}
			return kept{light(l), time.Now(), len(l.Delivery.Body)}, nil
		})
}

// fetch looks for a letter with the ID of the view, at its position if there are several.
func fetch(
	ctx context.Context, o *operate.Operator, src *source, v *letterView, note func(string),
) (found operate.Letter, err error) {
	seen := 0
	chosen := operate.Filter{Match: func(l operate.Letter) bool {
		if seen++; seen%500 == 0 {
			note(counted(seen, "letter"))
		}
		return l.ID == v.ID && l.Position == v.Position
	}}
	for l, err := range o.Dead(ctx, src.plan, chosen, 1) {
		return l, err
	}
	return found, notFound("letter %q is no longer at position %d of queue %q: look at the list again",
		v.ID, v.Position, v.Dead)
}

// fetchNow looks for the letter of a view during a request.
func (h *Handler) fetchNow(
	ctx context.Context, v *letterView, src *source,
) (found operate.Letter, err error) {
	select {
	case h.tasks.one <- struct{}{}:
		defer func() { <-h.tasks.one }()
	case <-ctx.Done():
		return found, failure{
			http.StatusServiceUnavailable, errors.New("other looks are under way: try again"),
		}
	}
	o, err := h.connected(ctx)
	if err != nil {
		return found, err
	}
	return fetch(ctx, o, src, v, func(string) {})
}

// download sends the whole payload of a letter.
func (h *Handler) download(w http.ResponseWriter, r *http.Request) error {
	v, src, err := h.letterOf(r.Context(), r.Form)
	if err != nil {
		return err
	}
	l, err := h.fetchNow(r.Context(), v, src)
	if err != nil {
		return err
	}
	body, name := l.Delivery.Body, fmt.Sprintf("letter-%d.bin", v.Position)
	if len(h.masks) > 0 {
		if body = h.shownPayload(body); body == nil {
			return failure{
				http.StatusForbidden,
				fmt.Errorf("masks are set, and this payload is no JSON, so that it is not shown"),
			}
		}
		name = fmt.Sprintf("letter-%d-masked.json", v.Position)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
	return nil
}
