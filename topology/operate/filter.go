package operate

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
)

// Filter chooses dead letters: those that meet every condition that is set. The
// zero value chooses all.
type Filter struct {
	// IDs: the letter's ID is one of them.
	IDs []string
	// Reason it was dead-lettered for.
	Reason header.Reason
	// Error is part of the text of the last error.
	Error string
	// ErrorPattern matches the text of the last error.
	ErrorPattern *regexp.Regexp
	// Handler that gave up.
	Handler string
	// Since and Until bound when it was dead-lettered, Since included and Until
	// not. A letter that does not say when meets neither.
	Since, Until time.Time
	// Headers the message has, with these values as text: see middleware's
	// metadata for how numbers, times and tables are written.
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
