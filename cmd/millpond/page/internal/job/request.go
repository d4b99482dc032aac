package job

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millpond-go/millpond/cmd/millpond/internal/lettertext"
	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/topology/operate"
)

// Kind is the kind of an action.
type Kind string

const (
	// Replay moves dead letters back to their queue, or to another one.
	Replay Kind = "replay"
	// Edit changes one dead letter and replays it; the original is kept.
	Edit Kind = "edit"
	// Discard throws dead letters away; each is in a file before.
	Discard Kind = "discard"
	// Return moves stranded messages to their queues, or to another one.
	Return Kind = "return"
	// Release ends the wait of messages, which go to their queue at once.
	Release Kind = "release"
	// Cancel ends the wait of messages, which become dead letters.
	Cancel Kind = "cancel"
	// ReleaseKey lets a key of a queue that is handled in order go on without the dead letter that
	// blocks it.
	ReleaseKey Kind = "release-key"
	// ReplayKey moves the dead letters of a key back in their order.
	ReplayKey Kind = "replay-key"
)

var verbs = map[Kind]string{
	Replay: "Replay", Edit: "Edit and replay", Discard: "Discard", Return: "Return",
	Release: "Release", Cancel: "Cancel",
	ReleaseKey: "Release", ReplayKey: "Replay",
}

// messages are those of the actions that are not about dead letters.
var messages = map[Kind]string{
	Return: "stranded message", Release: "waiting message", Cancel: "waiting message",
}

// Request is an action as a person asks for it.
type Request struct {
	Kind Kind `json:"kind"`
	// Queue is the queue whose dead letters or waiting messages it is about; for Return it is the
	// stranded queue.
	Queue string `json:"queue"`
	// Filter chooses the messages. An empty filter needs All, and All an empty filter.
	Filter operate.Filter `json:"chosen,omitzero"`
	All    bool           `json:"all,omitempty"`
	// Cause is the error of the group in the filter, as the Manager has found it.
	Cause string `json:"cause,omitempty"`
	// To is the queue that gets them, of Replay, Edit and Return. Default: their own.
	To string `json:"to,omitempty"`
	// Rate is the number of messages a second, of Replay and Return. Default: as fast as possible.
	Rate float64 `json:"rate,omitempty"`

	// Canary, Steps, StopAt, Settle, Watch and MaxReplays are the options of operate.RampOptions.
	// They go with a Replay to the queue of the letters. Unlike there, a Canary of 0 is none, and a
	// StopAt of 0 never stops.
	Canary     int           `json:"canary,omitempty"`
	Steps      []int         `json:"steps,omitempty"`
	StopAt     float64       `json:"stop_at,omitempty"`
	Settle     time.Duration `json:"settle,omitempty"`
	Watch      time.Duration `json:"watch,omitempty"`
	MaxReplays int           `json:"max_replays,omitempty"`

	// Key belongs to ReleaseKey and ReplayKey; Rehearse sets it for an Edit of a letter with a key. It
	// is never written to a file, because it may be masked. KeyText is the key as it may be shown,
	// and Mark the mark of the dead letter that the person has seen.
	Key     string `json:"-"`
	KeyText string `json:"key_text,omitempty"`
	Mark    string `json:"mark,omitempty"`

	// Change belongs to Edit. It is never written to a file.
	Change *Change `json:"-"`

	// Of is the action that this one resumes, and Runs are the runs of the actions that it
	// resumes: letters that are dead again since are passed over. The Manager sets both.
	Of   string   `json:"of,omitempty"`
	Runs []string `json:"runs,omitempty"`
}

// Change is an edit of one letter.
type Change struct {
	// Letter is the lettertext.Identity of the letter that the person has seen.
	Letter string
	// Text is its content after the edit, as lettertext writes it.
	Text string
	// NotJSON says that a payload that was JSON may become another one.
	NotJSON bool

	after lettertext.Content // what the rehearsal has read
}

// filter returns the filter for the library. It passes over letters of these runs.
func (r *Request) filter() (operate.Filter, error) {
	f := r.Filter
	if len(r.Runs) > 0 {
		f.Match = func(l operate.Letter) bool {
			mark, _ := l.Delivery.Headers[keys.Replay].(string)
			run, _, _ := strings.Cut(mark, ".")
			return !slices.Contains(r.Runs, run)
		}
	}
	if _, err := f.Matcher(); err != nil {
		return f, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	return f, nil
}

// check returns every problem of a request.
func (r *Request) check() error {
	var problems []error
	refuse := func(is bool, text string) {
		if is {
			problems = append(problems, errors.New(text))
		}
	}
	refuse(verbs[r.Kind] == "", fmt.Sprintf("there is no action %q", r.Kind))
	refuse(r.Queue == "", "name the queue")
	keyed := r.Kind == ReleaseKey || r.Kind == ReplayKey
	refuse(keyed && r.Key == "", "the key is not known any more: look at the keys of the queue again")
	refuse(keyed && (r.All || !r.Filter.IsZero()), "an action on a key takes no filter")
	refuse(r.Kind == ReleaseKey && r.Mark == "", "the key is not blocked")
	if !keyed {
		if r.Filter.IsZero() && !r.All {
			problems = append(problems, ErrNoFilter)
		}
		refuse(r.All && !r.Filter.IsZero(), "choose all messages or give a filter, not both")
	}
	r.checkOptions(refuse)
	if _, err := r.filter(); err != nil {
		problems = append(problems, err)
	}
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrRequest, errors.Join(problems...))
}

// checkOptions refuses options that do not go with the kind of the request.
func (r *Request) checkOptions(refuse func(is bool, text string)) {
	waits := r.Kind == Release || r.Kind == Cancel
	of := operate.Filter{IDs: r.Filter.IDs, Error: r.Filter.Error, Delay: r.Filter.Delay}
	refuse(waits && of.String() != r.Filter.String(),
		"messages that wait are chosen by ID, error and delay alone")
	refuse(!waits && r.Filter.Delay != 0, "only messages that wait are chosen by their delay")
	refuse(r.To != "" && r.Kind != Replay && r.Kind != Edit && r.Kind != Return,
		"only a replay, an edit and a return go to another queue")
	refuse(r.Rate > 0 && r.Kind != Replay && r.Kind != Return,
		"only a replay and a return have a rate")
	steps := r.Canary != 0 || len(r.Steps) > 0 || r.StopAt != 0 || r.Settle != 0 || r.Watch != 0 ||
		r.MaxReplays != 0
	refuse(steps && !r.watched(), "canary, steps, stop-at, settle, watch and the number of replays "+
		"go with a replay to the queue of the letters")
	refuse((r.Kind == Edit) != (r.Change != nil), "an edit, and no other action, needs a change")
	refuse(r.Change != nil && (len(r.Filter.IDs) != 1 || r.Change.Letter == ""),
		"an edit names one letter by its ID")
}

// watched reports whether the letters of the action are watched after they were moved.
func (r *Request) watched() bool {
	return r.Kind == Replay && (r.To == "" || r.To == r.Queue)
}

// ramp returns the options of a watched replay.
func (r *Request) ramp(options operate.MoveOptions) operate.RampOptions {
	return operate.RampOptions{
		MoveOptions: options, Canary: cmp.Or(r.Canary, -1), Steps: r.Steps,
		StopAt: cmp.Or(r.StopAt, 1), Settle: r.Settle,
		Watch: cmp.Or(r.Watch, max(time.Minute, r.Settle)),
	}
}

// words describes an action, with its count and its filter.
func (r *Request) words(n int, dead string) string {
	switch r.Kind {
	case ReleaseKey:
		return fmt.Sprintf("Release key %s of queue %q, which goes on without its dead letter; the "+
			"letter stays in queue %q", r.KeyText, r.Queue, dead)
	case ReplayKey:
		if n == 1 {
			return fmt.Sprintf("Replay 1 dead letter of key %s of queue %q", r.KeyText, r.Queue)
		}
		return fmt.Sprintf("Replay %d dead letters of key %s of queue %q, in their order", n, r.KeyText,
			r.Queue)
	}
	chosen := "all that are there"
	if f := overview.Chosen(r.Filter, r.Cause); f != "" {
		chosen = f
	}
	text := fmt.Sprintf("%s %s of queue %q, %s", verbs[r.Kind],
		overview.Plural(n, cmp.Or(messages[r.Kind], "dead letter")), r.Queue, chosen)
	switch {
	case r.To != "":
		text += fmt.Sprintf("; they go to queue %q", r.To)
	case r.Kind == Edit:
		text += fmt.Sprintf("; the original is kept in queue %q", dead+".originals")
	case r.Kind == Discard:
		text += "; each is written to a file first"
	case r.Kind == Cancel:
		text += "; they become dead letters"
	}
	if r.Rate > 0 {
		text += fmt.Sprintf("; %v a second", r.Rate)
	}
	switch {
	case r.Canary >= n && n > 0:
		text += "; all are watched"
	case r.Canary > 0:
		text += fmt.Sprintf("; the first %d are watched before the others go", r.Canary)
	}
	for i, n := range r.Steps {
		text += fmt.Sprintf("%s %d", cmp.Or(map[bool]string{true: "; in steps of"}[i == 0], ","), n)
	}
	if r.StopAt > 0 {
		text += fmt.Sprintf("; stop when more than %g %% are dead again", 100*r.StopAt)
	}
	return text
}
