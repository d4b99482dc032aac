package operate_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/topology/operate"
)

func TestTheTextOfAFilter(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string]operate.Filter{
		"": {},
		`id=order-1 id="order 2" reason=permanent error="no \"stock\"" handler=ship group=1627`: {
			IDs: []string{"order-1", "order 2"}, Reason: "permanent", Error: `no "stock"`,
			Handler: "ship", Group: "1627",
		},
		`for=orders for="a b"`: {Queues: []string{"orders", "a b"}},
		"since=2026-03-01T00:00:00Z until=2026-03-01T12:30:00.5Z delay=1m30s": {
			Since: day, Until: day.Add(12*time.Hour + 30*time.Minute + time.Second/2),
			Delay: 90 * time.Second,
		},
		`error=/^order\.[0-9]+$/ header=empty= header="tenant=a b" payload="\xff\x00"`: {
			Error: `/^order\.[0-9]+$/`, Headers: map[string]string{"empty": "", "tenant": "a b"},
			Payload: "\xff\x00",
		},
	} {
		got, err := operate.ParseFilter(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		again, err := operate.ParseFilter(want.String())
		require.NoError(t, err, want.String())
		require.Equal(t, want, again)
		require.Equal(t, text == "", want.IsZero())
		data, err := json.Marshal(want)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(data, &got))
		require.Equal(t, want, got)
	}
	secret := operate.Filter{Error: "x", Payload: "card 4711"}
	require.Equal(t, `error=x payload="(9 bytes)"`, secret.Redacted())
	secret = operate.Filter{Headers: map[string]string{"customer": "4711"}}
	require.NotContains(t, secret.Redacted(), "4711")
	require.Equal(t, "4711", secret.Headers["customer"], "the filter itself is unchanged")

	first, _ := operate.Fingerprint(operate.Letter{Error: "no stock"})
	second, _ := operate.Fingerprint(operate.Letter{Error: "timeout"})
	groups, err := operate.ParseFilter("group=" + first + " group=" + second)
	require.NoError(t, err)
	require.Equal(t, "group="+first+","+second, groups.String())
	chooses, err := groups.Matcher()
	require.NoError(t, err)
	for text, want := range map[string]bool{"no stock": true, "timeout": true, "refused": false} {
		require.Equal(t, want, chooses(operate.Letter{Error: text}), text)
	}

	now := day.Add(15 * time.Hour)
	for value, want := range map[string]time.Time{
		"2026-03-01": day, "2026-03-01 12:30": day.Add(750 * time.Minute),
		"2026-03-01T12:30": day.Add(750 * time.Minute), "2026-03-01T02:00:00+02:00": day,
		"2h": now.Add(-2 * time.Hour),
	} {
		var f operate.Filter
		require.NoError(t, f.Set("since", value, now))
		require.Equal(t, want, f.Since, value)
	}
}

func TestFiltersThatAreNone(t *testing.T) {
	t.Parallel()
	for text, why := range map[string]string{
		"order": "write name=value", "error": "write name=value", "error=": "error is empty",
		`error=""`: "error is empty", `error="a`: "do not end", `error="a"b`: "do not end",
		"colour=red": `no condition "colour"`, "error=a error=b": "twice", "error=/(/": "error: ",
		"payload=/[/": "payload: ", "header=a": "write name=value", "header==b": "write name=value",
		"header=a=/(/": "header: ", "header=a=b header=a=c": "each name once",
		"since=yesterday": "is no time", "since=2h since=1h": "the second one",
		"until=0001-01-01": "is no time", "delay=5": "one duration", "delay=-5s": "one duration",
	} {
		_, err := operate.ParseFilter(text)
		require.ErrorContains(t, err, why, text)
	}
	_, err := operate.Filter{
		Error: "/(/", Headers: map[string]string{"a": "/[/"}, Payload: "/)/",
	}.Matcher()
	require.ErrorIs(t, err, operate.ErrInvalidOptions)
	for _, name := range []string{"error: ", "header: ", "payload: "} {
		require.ErrorContains(t, err, name)
	}
}

// A text that is read is written so that it is read as the same filter.
func FuzzFilter(f *testing.F) {
	for _, seed := range []string{
		`id=1 id="a b" reason=x error=/a+/ since=2026-03-01 until=1h`,
		"header=a=/b/ payload=`x` delay=5s",
		`error="\xff\u202e" handler='`, `group="`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		first, err := operate.ParseFilter(text)
		if err != nil {
			return
		}
		again, err := operate.ParseFilter(first.String())
		require.NoError(t, err)
		require.Equal(t, first, again)
	})
}
