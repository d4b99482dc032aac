package header

import (
	"errors"

	"strconv"
	"strings"
	"time"
)

// How values are written in headers, and read. What does not parse is absent.

func putString(h map[string]string, key, value string) {
	if value != "" {
		h[key] = value
	}
}

func putTime(h map[string]string, key string, t time.Time) {
	if !t.IsZero() {
		h[key] = t.UTC().Format(time.RFC3339Nano)
	}
}

func parseTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}
	}
	return t
}

// deadlineFrom returns s if it is a value of DeadlineFromKey.
func deadlineFrom(s string) string {
	switch s {
	case FromTimestamp, FromArrival, FromPublish:
		return s
	}
	return ""
}

func parseDelay(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0
	}
	return d
}

func parseCount(s string) int {
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case err == nil && n < 0:
		return 0
	case err == nil && n <= MaxFailures:
		return int(n)
	case err == nil, isRange(err) && s[0] != '-':
		return MaxFailures
	}
	return 0
}

// maxTraceparentBytes bounds a forged traceparent; those of version 00 have 55
// bytes, later ones may have more.
const maxTraceparentBytes = 128

// traceparent returns s if it may be one: lower-case hexadecimal and dashes.
func traceparent(s string) string {
	foreign := func(r rune) bool { return !strings.ContainsRune("0123456789abcdef-", r) }
	if len(s) > maxTraceparentBytes || strings.ContainsFunc(s, foreign) {
		return ""
	}
	return s
}

func isRange(err error) bool { return errors.Is(err, strconv.ErrRange) }
