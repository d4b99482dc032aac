package page

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTextIsVisible(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain":                     "plain",
		"Grüße, 世界 🎉":               "Grüße, 世界 🎉",
		"\x1b[2J\x1b]0;x\x07":       "␛[2J␛]0;x␇",
		"abc\u202Edef\u2066":        "abc⟨U+202E⟩def⟨U+2066⟩",
		"zero\u200bwidth\ufeff":     "zero⟨U+200B⟩width⟨U+FEFF⟩",
		"\xff\xfe":                  "⟨xff⟩⟨xfe⟩",
		"a\u0301":                   "a\u0301",
		"\u0301a":                   "⟨U+0301⟩a",
		"tag\U000E0041":             "tag⟨U+E0041⟩",
		"line\nend\ttab\r":          "line␊end␉tab␍",
		"a\u00a0b\u2028c\u3164\x7f": "a⟨U+00A0⟩b⟨U+2028⟩c⟨U+3164⟩␡",
		"\uFFFD":                    "\uFFFD",
	} {
		require.Equal(t, want, visible(text, false), "%q", text)
	}
	require.Equal(t, "a\n\tb␍", visible("a\n\tb\r", true))
}

func TestLinesAreCut(t *testing.T) {
	t.Parallel()
	require.Equal(t, "abc", oneLine(3, "abc"))
	require.Equal(t, "ab…", oneLine(3, "abcd"))
	require.Equal(t, "世…", oneLine(2, "世界人"))
	huge := oneLine(10, strings.Repeat("\x1b", 10<<20))
	require.Equal(t, strings.Repeat("␛", 9)+"…", huge)
	require.Regexp(t, `^ends <time [^<]*>in \d+ d</time>: &lt;b&gt; at 2026-02-30 10:00:00Z$`,
		string(said(99, "ends at 2999-03-01 12:00:00Z: <b> at 2026-02-30 10:00:00Z")))
}

func TestMasksHideValues(t *testing.T) {
	t.Parallel()
	const body = `{"card":{"number":"4111","Holder":"Ada"},"items":[{"pin":71,"n":2},{"pin":73}],` +
		`"deep":{"a":{"pin":[79]}},"e-mail":"a@b","n":12345678901234567890,"n":1.50}`
	for texts, hidden := range map[string][]string{ // values of the body that are masked
		"$.card.number":             {`"4111"`},
		"$.CARD.holder":             {`"Ada"`},
		"$.card $..pin $['e-mail']": {`{"number":"4111","Holder":"Ada"}`, "71", "73", "[79]", `"a@b"`},
		"$.items[1] $.card.* $.n $.deep..*": {
			`{"pin":73}`, `"4111"`, `"Ada"`, "12345678901234567890", "1.50", `{"pin":[79]}`,
		},
	} {
		var masks []mask
		for text := range strings.FieldsSeq(texts) {
			m, err := parseMask(text)
			require.NoError(t, err)
			masks = append(masks, m)
		}
		want := body
		for _, value := range hidden {
			require.Equal(t, 1, strings.Count(want, value), value)
			want = strings.Replace(want, value, `"(masked)"`, 1)
		}
		got, err := rewrite([]byte(body), masks, "", maxPretty)
		require.NoError(t, err)
		require.Equal(t, want, string(got), texts)
	}
	for _, text := range []string{"", "$", "card", "$.a b", "$.a[", "$.a[?(@.b)]", "$.", "$.."} {
		_, err := parseMask(text)
		require.Error(t, err, text)
	}
	for _, body := range []string{"", "{", `{"a":1}x`, "\xff", `[1,]`, strings.Repeat("[", 1000)} {
		_, err := rewrite([]byte(body), nil, "  ", maxPretty)
		require.Error(t, err, body)
	}
}

func TestPayloadsAreShown(t *testing.T) {
	t.Parallel()
	plain := &Handler{}
	m, _ := parseMask("$.pin")
	masking := &Handler{masks: []mask{m}}
	long := []byte(strings.Repeat("x", maxBody))
	for _, c := range []struct {
		h    *Handler
		body []byte
		hex  bool
		want payload
	}{
		{plain, []byte(`{"a":1}`), false, payload{Form: "JSON", Text: "{\n  \"a\": 1\n}", Size: 7}},
		{plain, []byte("a longer text\x1b"), false, payload{
			Form: "text", Text: "a longer text␛", Size: 14,
		}},
		{plain, []byte("\x00\x01"), false, payload{
			Form: "bytes", Text: "00000000  00 01                                             |..|", Size: 2,
		}},
		{plain, []byte("a"), true, payload{
			Form: "bytes", Text: "00000000  61                                                |a|", Size: 1,
		}},
		{plain, long, false, payload{
			Form: "text", Text: strings.Repeat("x", shownBytes), Size: 10 << 20, Cut: 10<<20 - shownBytes,
		}},
		{masking, []byte(`{"pin":1}`), true, payload{
			Form: "JSON", Text: "{\n  \"pin\": \"(masked)\"\n}", Size: 9, Masked: true,
		}},
		{masking, []byte("pin 1"), false, payload{Size: 5, Masked: true, Hidden: true}},
		{masking, long, true, payload{Size: 10 << 20, Masked: true, Hidden: true}},
	} {
		require.Equal(t, c.want, c.h.payloadOf(c.body, c.want.Size, c.hex))
	}
}
