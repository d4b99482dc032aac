package main

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		value, date string
		want        time.Duration
		asked       bool
	}{
		"nothing":             {"", "", 0, false},
		"seconds":             {"120", "", 2 * time.Minute, true},
		"zero":                {"0", "", 0, true},
		"negative":            {"-5", "", 0, false},
		"a fraction":          {"1.5", "", 0, false},
		"words":               {"soon", "", 0, false},
		"a year":              {"31536000", "", time.Hour, true},
		"more than fits":      {"18446744073709551615", "", time.Hour, true},
		"too many digits":     {"99999999999999999999", "", 0, false},
		"a date":              {"Thu, 02 Jan 2025 12:00:30 GMT", "", 30 * time.Second, true},
		"a date that is past": {"Thu, 02 Jan 2025 11:00:00 GMT", "", 0, true},
		"a date next year":    {"Fri, 02 Jan 2026 12:00:00 GMT", "", time.Hour, true},
		"a date by another clock": {
			"Wed, 01 Jan 2020 00:00:05 GMT", "Wed, 01 Jan 2020 00:00:03 GMT", 2 * time.Second, true,
		},
		"a clock that cannot be read": {"Thu, 02 Jan 2025 12:00:30 GMT", "noon", 30 * time.Second, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			header := http.Header{}
			if test.value != "" {
				header.Set("Retry-After", test.value)
			}
			if test.date != "" {
				header.Set("Date", test.date)
			}
			wait, asked := retryAfter(header, noon)
			require.Equal(t, test.want, wait)
			require.Equal(t, test.asked, asked)
		})
	}
}

// What the receiver writes the sender reads, in both forms and in the middle of
// a second.
func TestRetryAfterOfReceiver(t *testing.T) {
	t.Parallel()
	for _, date := range []bool{false, true} {
		header := http.Header{}
		setRetryAfter(header, answer{status: 429, after: 2 * time.Second, date: date}, noon.Add(987*time.Millisecond))
		wait, asked := retryAfter(header, noon.Add(time.Minute))
		require.True(t, asked)
		require.Equal(t, 2*time.Second, wait)
	}
}
