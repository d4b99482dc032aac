package header

import (
	"encoding/json"

	"github.com/millpond-go/millpond/internal/excerpt"

	"strings"
	"time"
)

const (
	// MaxErrorBytes is the most of an error's text that is kept in a
	// All headers of a message share one frame of 128 KiB (broker fact F16).
	MaxErrorBytes = 2048
	// MaxHistoryBytes is the most the history takes; the oldest entries go first.
	MaxHistoryBytes = 16 << 10
	// maxEntryErrorBytes is the most of an error's text in a history entry.
	MaxEntryErrorBytes = 256
)

// AttemptError is one failed attempt.
type AttemptError struct {
	// Attempt is 1 for the first delivery.
	Attempt int `json:"attempt"`
	// At is when it failed.
	At time.Time `json:"at"`
	// Handler is the name of the handler in the router.
	Handler string `json:"handler,omitempty"`
	// Class of the error.
	Class Class `json:"class,omitempty"`
	// Error is the error's text, cut.
	Error string `json:"error,omitempty"`
	// Delay until the next attempt as it was asked for, as Go prints it; empty
	// on the last.
	Delay string `json:"delay,omitempty"`
	// Reason for dead-lettering; empty unless this was the last attempt.
	Reason Reason `json:"reason,omitempty"`
}

// encodeHistory returns the newest entries that fit MaxHistoryBytes, as JSON.
func encodeHistory(entries []AttemptError) string {
	size := len("[]")
	first := len(entries)
	parts := make([]string, len(entries))
	for first > 0 {
		e := entries[first-1]
		e.Error = excerpt.Of(e.Error, MaxEntryErrorBytes)
		e.Handler = excerpt.Of(e.Handler, MaxEntryErrorBytes)
		e.At = e.At.UTC()
		text, err := json.Marshal(e)
		if err != nil { // a year past 9999: leave it and what is older out
			break
		}
		if size += len(text) + len(","); size > MaxHistoryBytes {
			break
		}
		first--
		parts[first] = string(text)
	}
	if first == len(entries) {
		return ""
	}
	return "[" + strings.Join(parts[first:], ",") + "]"
}

// decodeHistory reads what encodeHistory wrote. Anything else is no history.
func decodeHistory(text string) []AttemptError {
	if text == "" || len(text) > MaxHistoryBytes {
		return nil
	}
	var entries []AttemptError
	if json.Unmarshal([]byte(text), &entries) != nil {
		return nil
	}
	return entries
}
