package middleware

import (
	"slices"
	"time"

	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/middleware/header"
)

// record returns the notes to travel on with: those the message brought, and
// this failure. What it brought is not changed.
func (f failure) record(d decision, text string) header.RetryState {
	if d.aside {
		return f.recordAside(d.delay)
	}
	n := f.notes
	n.Failures = d.count
	n.FirstFailure = d.first
	n.FirstSeen = notAfter(n.FirstSeen, f.now)
	n.Delay = d.delay
	n.Snoozed = 0
	n.WaitingSince = time.Time{}
	n.Inner = f.inner
	n.NotBefore = time.Time{}
	n.Interruptions = 0
	n.Error = excerpt.Of(text, header.MaxErrorBytes)
	n.Class = f.mark.class
	n.Handler = f.at.handler
	n.Reason = d.reason

	entry := header.AttemptError{
		Attempt: d.count,
		At:      f.now,
		Handler: f.at.handler,
		Class:   n.Class,
		Error:   excerpt.Of(text, header.MaxEntryErrorBytes),
		Reason:  d.reason,
	}
	if d.reason == "" {
		entry.Delay = d.delay.String()
		n.WaitingSince = f.now
	} else {
		n.DeadAt = f.now
	}
	n.History = append(slices.Clip(n.History), entry)
	return n
}
