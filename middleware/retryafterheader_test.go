package middleware

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
)

func TestParseRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2025, 1, 2, 12, 0, 0, 0, time.UTC)
	const tenYears = 87_600 * time.Hour
	for name, test := range map[string]struct {
		value, date string
		want        time.Duration
		found       bool
	}{
		"nothing":                  {"", "", 0, false},
		"seconds":                  {"120", "", 2 * time.Minute, true},
		"seconds in blanks":        {" 7\t", "", 7 * time.Second, true},
		"zero":                     {"0", "", 0, true},
		"negative":                 {"-5", "", 0, false},
		"with a sign":              {"+5", "", 0, false},
		"a fraction":               {"1.5", "", 0, false},
		"digits of another script": {"٧", "", 0, false},
		"ten years":                {"315360000", "", tenYears, true},
		"wraps around to little":   {"18446744073709551617", "", tenYears, true},
		"a million digits":         {strings.Repeat("9", 1_000_000), "", tenYears, true},
		"a date":                   {"Thu, 02 Jan 2025 12:00:30 GMT", "", 30 * time.Second, true},
		"a date of RFC 850":        {"Thursday, 02-Jan-25 12:00:30 GMT", "", 30 * time.Second, true},
		"a date of C":              {"Thu Jan  2 12:00:30 2025", "", 30 * time.Second, true},
		"a date that is past":      {"Thu, 02 Jan 2025 11:00:00 GMT", "", 0, true},
		"the first date":           {"Mon, 01 Jan 0001 00:00:00 GMT", "", 0, true},
		"the last date":            {"Fri, 31 Dec 9999 23:59:59 GMT", "", tenYears, true},
		"a date in RFC 3339":       {"2025-01-02T12:00:30Z", "", 0, false},
		"a date by another clock": {
			"Wed, 01 Jan 2020 00:00:05 GMT", "Wed, 01 Jan 2020 00:00:03 GMT", 2 * time.Second, true,
		},
		"past by another clock": {
			"Thu, 02 Jan 2025 12:00:30 GMT", "Thu, 02 Jan 2025 12:01:00 GMT", 0, true,
		},
		"all of time apart": {
			"Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 01 Jan 0001 00:00:00 GMT", tenYears, true,
		},
		"a clock not readable":      {"Thu, 02 Jan 2025 12:00:30 GMT", "noon", 30 * time.Second, true},
		"seconds by another clock":  {"7", "Wed, 01 Jan 2020 00:00:03 GMT", 7 * time.Second, true},
		"an answer without a value": {"", "Wed, 01 Jan 2020 00:00:03 GMT", 0, false},
	} {
		header := http.Header{"Retry-After": {test.value, "99"}}
		if test.date != "" {
			header.Set("Date", test.date)
		}
		got, found := parseRetryAfter(header, func() time.Time { return now })
		assert.Equal(t, test.want, got, name)
		assert.Equal(t, test.found, found, name)
	}
	if _, found := parseRetryAfter(nil, time.Now); found {
		t.Error("found in nil")
	}
	later := time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	got, found := parseRetryAfter(http.Header{"Retry-After": {later}}, time.Now)
	assert.True(t, found && got > 59*time.Minute && got <= time.Hour, "%v by the clock here", got)
}

func TestRetryAfterHeader(t *testing.T) {
	t.Parallel()
	errBusy := errors.New("busy")
	asks := func(value string) http.Header { return http.Header{"Retry-After": {value}} }
	for name, test := range map[string]struct {
		header http.Header
		limit  time.Duration
		marked bool
		floor  time.Duration
	}{
		"asks for nothing":  {http.Header{}, time.Hour, false, 0},
		"asks for nonsense": {asks("soon"), time.Hour, false, 0},
		"seconds":           {asks("7"), time.Hour, true, 7 * time.Second},
		"at the limit":      {asks("3600"), time.Hour, true, time.Hour},
		"above the limit":   {asks("3601"), time.Hour, true, time.Hour},
		"no limit":          {asks("3601"), 0, true, 3601 * time.Second},
		"a negative limit":  {asks("99999999999"), -1, true, backoff.MaxDelay},
		"zero":              {asks("0"), time.Hour, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := RetryAfterHeader(errBusy, test.header, test.limit)
			require.ErrorIs(t, err, errBusy)
			found, marked := markOf(err)
			assert.Equal(t, test.marked, marked)
			assert.Equal(t, test.floor, found.floor)
			assert.Equal(t, marked, found.class == header.ClassRetryable)
		})
	}
	assert.Nil(t, RetryAfterHeader(nil, asks("7"), 0))
}

func FuzzParseRetryAfter(f *testing.F) {
	f.Add("120", "")
	f.Add("Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 01 Jan 0001 00:00:00 GMT")
	f.Add("-1", "noon")
	f.Add("99999999999999999999999999", "\x00")
	f.Fuzz(func(t *testing.T, value, date string) {
		header := http.Header{"Retry-After": {value}, "Date": {date}}
		got, found := parseRetryAfter(header, time.Now)
		assert.False(t, got < 0 || got > backoff.MaxDelay || !found && got != 0,
			"%q, %q: got %v, %v", value, date, got, found)
		mark, marked := markOf(RetryAfterHeader(errTest, header, time.Minute))
		assert.Equal(t, found, marked)
		assert.False(t, mark.floor > min(got, time.Minute))
	})
}
