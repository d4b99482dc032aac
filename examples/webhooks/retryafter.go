package main

import (
	"net/http"
	"strconv"
	"time"
)

// maxRetryAfter bounds what a receiver may ask for: it is somebody else's server.
const maxRetryAfter = time.Hour

// retryAfter reads the Retry-After of an answer: seconds, or a date. It is false
// where there is none that can be read.
//
// A date is compared with the Date of the same answer, so that a receiver whose
// clock is wrong does no harm; without one, with now.
func retryAfter(header http.Header, now time.Time) (time.Duration, bool) {
	value := header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 64); err == nil {
		return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		now = date
	}
	return min(max(at.Sub(now), 0), maxRetryAfter), true
}
