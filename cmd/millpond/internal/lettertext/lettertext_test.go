package lettertext_test

import (
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/lettertext"
)

// difference is a difference as text.
func difference(t *testing.T, before, after lettertext.Content) string {
	t.Helper()
	spans, err := lettertext.Difference(before, after)
	require.NoError(t, err)
	var text strings.Builder
	for _, s := range spans {
		text.WriteString(s.Text)
	}
	return text.String()
}

// edited is content after a person has replaced a part of its text.
func edited(t *testing.T, before lettertext.Content, old, new string) lettertext.Content {
	t.Helper()
	text, err := before.Text()
	require.NoError(t, err)
	require.Contains(t, text, old)
	after, err := lettertext.Parse(strings.Replace(text, old, new, 1), before, false)
	require.NoError(t, err)
	return after
}

// Lines were cut at 2000 characters, so that one-line JSON of 20 KiB looked the same before and
// after. The changed word is shown, in many fields and in one long text, and nothing of a change is
// cut.
func TestDifferenceShowsTheChangedWord(t *testing.T) {
	t.Parallel()
	var fields []string
	for i := range 1000 {
		fields = append(fields, fmt.Sprintf(`"field%d":"value %d"`, i, i))
	}
	pad := strings.Repeat("x", 3000)
	long := strings.Repeat("all work and no play ", 500)
	for name, c := range map[string]struct{ body, old, new, want string }{
		"many fields": {
			"{" + strings.Join(fields, ",") + "}", `"value 700"`, `"another 700"`,
			` … 18595 unchanged characters … field696": "value 696",
  "field697": "value 697",
  "field698": "value 698",
  "field699": "value 699",
  "field700": "[-value-]{+another+} 700",
  "field701": "value 701",
`,
		},
		"one text": {
			`{"text":"` + long + "and then the end " + long + `"}`, "the end", "the beginning",
			" … 10424 unchanged characters … y " + strings.Repeat("all work and no play ", 5) +
				"and then the [-end-]{+beginning+} " + long[:119] + " … 10386 unchanged characters … ",
		},
		"in a long word": {
			`{"pad":"` + pad + "1" + pad + `"}`, "1", "22",
			pad[:120] + "[-1-]{+22+}" + pad[:120],
		},
		"a large text": {
			`{"text":"a"}`, `"a"`, `"` + long + `"`, `  "text": "[-a-]{+` + long + `+}"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := lettertext.Content{Body: []byte(c.body)}
			after := edited(t, before, c.old, c.new)
			require.Contains(t, difference(t, before, after), c.want)
			require.Equal(t, strings.Replace(c.body, c.old, c.new, 1), string(after.Body))
		})
	}
}

// A large text in which each line has changed takes no minute: it took the square of its lines.
func TestDifferenceOfManyLines(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("the same word\n", 20_000)
	before := lettertext.Content{Body: []byte(text)}
	after := lettertext.Content{Body: []byte(strings.ReplaceAll(text, "word", "words"))}
	require.Equal(t, 20_000, strings.Count(difference(t, before, after), "[-word-]{+words+}"))
	after.Body = append([]byte("first\n"), text...)
	require.Less(t, len(difference(t, before, after)), 1000)
}

// A body that is not changed keeps its bytes, however it is written. JSON stays JSON, unless a
// person says otherwise.
func TestEditKeepsOrRefusesTheBody(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 500) + strings.Repeat("]", 500) // is shown as text
	for _, body := range []string{
		` {"b" : 1, "a":1.0e2 } `, "{\n\t\"a\": 1\n}\r\n", `{"a":"` + "\u202e" + `"}`, deep,
		"plain", "\xff\x00", "",
	} {
		before := lettertext.Content{Headers: amqp.Table{"tenant": "a"}, Body: []byte(body)}
		after := edited(t, before, `tenant string "a"`, `tenant string "b"`)
		require.Equal(t, body, string(after.Body))
		require.Contains(t, difference(t, before, after), "tenant string \"[-a-]{+b+}\"\n")
	}
	for _, c := range []struct{ body, old, new string }{
		{`{"a":1}`, `"a": 1`, `"a": `},
		{`{"a":1}`, "payload as json", "payload as text"},
		{deep, "[", "{"},
	} {
		before := lettertext.Content{Body: []byte(c.body)}
		text, err := before.Text()
		require.NoError(t, err)
		text = strings.Replace(text, c.old, c.new, 1) + "x"
		_, err = lettertext.Parse(text, before, false)
		require.ErrorIs(t, err, lettertext.ErrNoJSON)
		after, err := lettertext.Parse(text, before, true)
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(text, string(after.Body)))
	}
}
