package middleware

import (
	"net/http"
	"strings"
	"time"

	"github.com/millpond-go/millpond/backoff"
)

// RetryAfterHeader marks err as RetryAfter does, with what the Retry-After of an
// HTTP answer asks for but at most limit, for the other side may ask for years. A
// limit that is not positive is none but backoff.MaxDelay. err is returned as it is
// where ParseRetryAfter finds nothing; of nil it is nil.
//
//	if resp.StatusCode == http.StatusTooManyRequests {
//		err = middleware.RetryAfterHeader(err, resp.Header, time.Hour)
//	}
func RetryAfterHeader(err error, header http.Header, limit time.Duration) error {
	asked, found := ParseRetryAfter(header)
	if !found {
		return err
	}
	if limit > 0 {
		asked = min(asked, limit)
	}
	return RetryAfter(err, asked)
}

// ParseRetryAfter returns the delay that the Retry-After of an HTTP answer asks
// for, from 0 to backoff.MaxDelay. It is false where there is none that can be
// read as RFC 9110 defines it:
//
//   - whole seconds, "120", however many digits there are. Signs and fractions are
//     no such number.
//   - a date, "Fri, 31 Dec 2027 23:59:59 GMT", in one of the three forms of HTTP.
//     It is compared with the Date of the same answer, so that the two clocks need
//     not agree; without one that can be read, with the clock here. A date that is
//     past asks for 0.
//
// Of several Retry-After the first counts.
func ParseRetryAfter(header http.Header) (delay time.Duration, found bool) {
	return parseRetryAfter(header, time.Now)
}

func parseRetryAfter(header http.Header, now func() time.Time) (delay time.Duration, found bool) {
	value := strings.TrimSpace(header.Get("Retry-After"))
	if delay, found = parseSeconds(value); found {
		return delay, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	since, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		since = now()
	}
	return min(max(at.Sub(since), 0), backoff.MaxDelay), true
}

// parseSeconds reads digits alone. A number too large for anything is the longest
// delay.
func parseSeconds(digits string) (time.Duration, bool) {
	var seconds time.Duration
	for i := range len(digits) {
		if digits[i] < '0' || digits[i] > '9' {
			return 0, false
		}
		seconds = min(10*seconds+time.Duration(digits[i]-'0'), backoff.MaxDelay/time.Second)
	}
	return seconds * time.Second, digits != ""
}
