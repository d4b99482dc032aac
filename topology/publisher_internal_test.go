package topology

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

func TestRemainingDelay(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 300_000_000, time.UTC)
	at := func(d time.Duration) string { return now.Add(d).Format(time.RFC3339) }
	for name, c := range map[string]struct {
		asked, until string
		want         time.Duration
		err          string
	}{
		"none": {},
		"just written": {
			asked: "3s", until: at(3 * time.Second),
			want: 3 * time.Second,
		},
		"a minute in an outbox": {
			asked: "3m", until: at(2 * time.Minute),
			want: 2*time.Minute + 700*time.Millisecond,
		},
		"too long in it": {
			asked: "3s", until: at(-time.Minute),
			want: -time.Minute + 700*time.Millisecond,
		},
		"a duration alone": {asked: "1h30m", want: 90 * time.Minute},
		"a time alone": {
			until: at(time.Minute),
			want:  time.Minute - 300*time.Millisecond,
		},
		"negative": {
			asked: "-3s", until: at(-3 * time.Second),
			want: -3 * time.Second,
		},
		"no duration": {
			asked: "soon",
			err:   `metadata "_watermill_delayed_for" is no duration`,
		},
		"no time": {
			until: "tomorrow",
			err:   `metadata "_watermill_delayed_until" is no time`,
		},
		"twenty years": {
			asked: "175200h", until: at(175200 * time.Hour),
			err: "is longer than",
		},
		"the clocks of two hosts disagree": {asked: "3s", until: at(time.Hour), want: 3 * time.Second},
		"a duration that does not fit":     {asked: "9999999h", err: "is no duration"},
		"a time that is no duration away":  {until: "9999-01-01T00:00:00Z", err: "is longer than"},
		"a time before there were any":     {until: "0001-01-01T00:00:00Z", want: -1 << 63},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			msg := message.NewMessage("id", nil)
			if c.asked != "" {
				msg.Metadata.Set(delay.DelayedForKey, c.asked)
			}
			if c.until != "" {
				msg.Metadata.Set(delay.DelayedUntilKey, c.until)
			}
			got, err := remainingDelay(msg, now)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}
