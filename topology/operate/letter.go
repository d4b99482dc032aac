package operate

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"regexp"
	"slices"
	"strings"
	"time"

	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
)

// uuidHeader is where watermill-amqp keeps Watermill's UUID.
const uuidHeader = "_watermill_message_uuid"

// Letter is a dead letter. A field that is not known is the zero value. Its fields are as reliable
// as its publishers: any user who may publish to the queue may write them.
type Letter struct {
	// ID is the message id, else Watermill's UUID, else "sha256:" and the first twelve digits of a
	// hash of the payload. It need not be unique.
	ID string
	// Position in the queue when it was looked at, 1 for the oldest.
	Position int
	// Queue is the queue whose handler gave up.
	Queue string
	// DeadAt is when it was dead-lettered, by the broker itself: the time in x-death.
	DeadAt time.Time
	// Attempts that failed in the last round.
	Attempts int
	// Reason is a reason of the middleware, or of the broker: expired, rejected, maxlen,
	// delivery_limit.
	Reason header.Reason
	// Error is the last error, which may be cut.
	Error string
	// Class of the last error.
	Class header.Class
	// Handler that gave up.
	Handler string
	// Deadline is the end of the message's own expiration, of a letter with header.ReasonDeadline.
	// DeadlineFrom names the time that the expiration was counted from, such as
	// header.FromTimestamp; it is empty where that was not noted.
	Deadline     time.Time
	DeadlineFrom string
	// Replays is how often Replay has moved it back before.
	Replays int
	// History has an entry for each failed attempt, oldest first, also of earlier rounds; of very many
	// the oldest are missing.
	History []header.AttemptError
	// OriginExchange and OriginRoutingKey are how it was published first.
	OriginExchange, OriginRoutingKey string
	// Delivery is the message as it is in the queue. It cannot be acked or nacked.
	Delivery amqp.Delivery
}

// newLetter reads a delivery, which it keeps without the means to settle it.
func newLetter(d amqp.Delivery, position int) Letter {
	d.Acknowledger = nil
	get := textOf(&d)
	queue, state := header.ParseDead(get)
	l := Letter{
		ID: idOf(&d), Position: position, Queue: queue,
		DeadAt: state.DeadAt, Attempts: state.Failures, Reason: state.Reason, Error: state.Error,
		Class: state.Class, Handler: state.Handler, Deadline: state.Deadline,
		DeadlineFrom: state.DeadlineFrom, Replays: header.ParseReplays(get), History: state.History,
		OriginExchange: state.OriginExchange, OriginRoutingKey: state.OriginRoutingKey, Delivery: d,
	}
	if l.Error == "" {
		l.Error, _ = get(wmiddleware.ReasonForPoisonedKey)
	}
	if l.Handler == "" {
		l.Handler, _ = get(wmiddleware.PoisonedHandlerKey)
	}
	l.readDeath()
	return l
}

// readDeath reads the fields of a letter that the broker has dead-lettered.
func (l *Letter) readDeath() {
	deaths, _ := l.Delivery.Headers["x-death"].([]any)
	if len(deaths) == 0 || l.Queue != "" || l.Reason != "" {
		return
	}
	death, _ := deaths[0].(amqp.Table)
	l.Queue, _ = death["queue"].(string)
	reason, _ := death["reason"].(string)
	l.Reason = header.Reason(reason)
	l.DeadAt, _ = death["time"].(time.Time)
}

func idOf(d *amqp.Delivery) string {
	if d.MessageId != "" {
		return d.MessageId
	}
	if id, _ := d.Headers[uuidHeader].(string); id != "" {
		return id
	}
	sum := sha256.Sum256(d.Body)
	return "sha256:" + hex.EncodeToString(sum[:6])
}

// textOf returns the text headers of a delivery.
func textOf(d *amqp.Delivery) func(key string) (string, bool) {
	return func(key string) (string, bool) {
		text, ok := d.Headers[key].(string)
		return text, ok
	}
}

// HeaderText returns a header's value as text, as Watermill's metadata has it: strings as they are,
// times in RFC 3339, bytes in base64, tables and arrays as JSON.
func HeaderText(value any) string { return wire.Text(value) }

// Filter chooses the dead letters that meet every condition that is set. The zero value chooses
// all.
type Filter struct {
	// IDs are the IDs to choose.
	IDs []string
	// Reason of the letter.
	Reason header.Reason
	// Error is part of the text of the last error.
	Error string
	// ErrorPattern matches the text of the last error.
	ErrorPattern *regexp.Regexp
	// Handler that gave up.
	Handler string
	// Since and Until bound DeadAt, Since included and Until not. A letter without DeadAt meets
	// neither.
	Since, Until time.Time
	// Headers the message has, with these values as HeaderText writes them.
	Headers map[string]string
	// Match is any other condition.
	Match func(Letter) bool
}

// Matches reports whether the filter chooses the letter.
func (f Filter) Matches(l Letter) bool {
	switch {
	case len(f.IDs) > 0 && !slices.Contains(f.IDs, l.ID),
		f.Reason != "" && f.Reason != l.Reason,
		!strings.Contains(l.Error, f.Error),
		f.ErrorPattern != nil && !f.ErrorPattern.MatchString(l.Error),
		f.Handler != "" && f.Handler != l.Handler,
		!f.Since.IsZero() && (l.DeadAt.IsZero() || l.DeadAt.Before(f.Since)),
		!f.Until.IsZero() && (l.DeadAt.IsZero() || !l.DeadAt.Before(f.Until)):
		return false
	}
	for key, want := range f.Headers {
		value, ok := l.Delivery.Headers[key]
		if !ok || wire.Text(value) != want {
			return false
		}
	}
	return f.Match == nil || f.Match(l)
}

// maxGroups bounds what GroupByError keeps in memory.
const maxGroups = 1000

// Group is a group of dead letters with the same reason and the same error, numbers aside.
type Group struct {
	Reason header.Reason
	// Error with every number in it written as #; "(others)" for letters that came after a thousand
	// groups.
	Error string
	Count int
	// First and Last are the earliest and the latest DeadAt; zero where no letter has one.
	First, Last time.Time
	// Example is the ID of one of them.
	Example string
}

// numbers distinguish errors of one kind: digits, and words of hexadecimal digits such as ids.
var numbers = regexp.MustCompile(`\b[0-9a-fA-F]*\d[0-9a-fA-F-]{7,}\b|\d+`)

// GroupByError reads letters, as Dead returns them, and groups them by reason and error, the
// largest group first. Its memory is bounded.
func GroupByError(letters iter.Seq2[Letter, error]) ([]Group, error) {
	type key struct {
		reason header.Reason
		text   string
	}
	groups := map[key]*Group{}
	for l, err := range letters {
		if err != nil {
			return nil, err
		}
		k := key{l.Reason, numbers.ReplaceAllString(l.Error, "#")}
		if groups[k] == nil && len(groups) >= maxGroups {
			k = key{text: "(others)"}
		}
		g := groups[k]
		if g == nil {
			g = &Group{Reason: k.reason, Error: k.text, Example: l.ID}
			groups[k] = g
		}
		g.Count++
		if at := l.DeadAt; !at.IsZero() {
			if g.First.IsZero() || at.Before(g.First) {
				g.First = at
			}
			if at.After(g.Last) {
				g.Last = at
			}
		}
	}
	sorted := make([]Group, 0, len(groups))
	for _, g := range groups {
		sorted = append(sorted, *g)
	}
	slices.SortFunc(sorted, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Error, b.Error))
	})
	return sorted, nil
}
