package middleware

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// MaxErrorBytes is the most of an error's text that is kept in a header.
	// All headers of a message share one frame of 128 KiB (broker fact F16).
	MaxErrorBytes = 2048
	// MaxHistoryBytes is the most the history takes; the oldest entries go first.
	MaxHistoryBytes = 16 << 10
	// maxEntryErrorBytes is the most of an error's text in a history entry.
	maxEntryErrorBytes = 256
)

// HistoryEntry is one failed attempt.
type HistoryEntry struct {
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
func encodeHistory(entries []HistoryEntry) string {
	size := len("[]")
	first := len(entries)
	parts := make([]string, len(entries))
	for first > 0 {
		e := entries[first-1]
		e.Error = cutText(e.Error, maxEntryErrorBytes)
		e.Handler = cutText(e.Handler, maxEntryErrorBytes)
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
func decodeHistory(text string) []HistoryEntry {
	if text == "" || len(text) > MaxHistoryBytes {
		return nil
	}
	var entries []HistoryEntry
	if json.Unmarshal([]byte(text), &entries) != nil {
		return nil
	}
	return entries
}

// cutText returns text as valid UTF-8 of at most limit bytes; what is cut is
// marked with the length it had.
func cutText(text string, limit int) string {
	length := len(text)
	text = validStart(text, limit)
	if len(text) <= limit {
		return text
	}
	mark := " … (cut, " + strconv.Itoa(length) + " bytes)"
	end := limit - len(mark)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}

// validStart returns text as valid UTF-8, which is never longer, or as much of its
// beginning as is longer than limit: a megabyte is not looked at for the sake of a
// header.
func validStart(text string, limit int) string {
	for seen := 2 * limit; ; seen *= 2 {
		if seen >= len(text) {
			return strings.ToValidUTF8(text, "?")
		}
		// The last rune may be cut in two.
		if valid := strings.ToValidUTF8(text[:seen], "?"); len(valid) > limit+utf8.UTFMax {
			return valid
		}
	}
}
