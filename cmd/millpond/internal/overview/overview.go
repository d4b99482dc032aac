// Package overview writes and reads the numbers that the tool and its page share.
package overview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/millpond-go/millpond/topology/operate"
)

// Plural is a number of things.
func Plural(n int, one string) string {
	if n != 1 {
		one += "s"
	}
	return fmt.Sprint(n, " ", one)
}

// Digits writes a number with narrow spaces between thousands.
func Digits(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "\u202f" + text[i:]
	}
	return text
}

// At is a time as sentences have it.
func At(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// About is a duration with one or two units, such as 5 s, 3 min or 2 h 10 min.
func About(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%g s", float64(d.Round(100*time.Millisecond))/float64(time.Second))
	case d < time.Hour:
		return twoUnits(d, time.Minute, "min", time.Second, "s")
	case d < 24*time.Hour:
		return twoUnits(d, time.Hour, "h", time.Minute, "min")
	}
	return twoUnits(d, 24*time.Hour, "d", time.Hour, "h")
}

func twoUnits(d, large time.Duration, name string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d %s", d/large, name)
	if rest := d % large / small; rest > 0 {
		text += fmt.Sprintf(" %d %s", rest, smallName)
	}
	return text
}

// Growth says how much the messages of an incident have grown, as "+40 in 10 min"; "" if that is
// not known or nothing.
func Growth(i operate.Incident, now time.Time) string {
	if i.Grown == 0 || i.GrownSince.IsZero() {
		return ""
	}
	over := now.Sub(i.GrownSince)
	if over > time.Minute {
		over = over.Round(time.Minute)
	}
	return fmt.Sprintf("%+d in %s", i.Grown, About(over.Round(time.Second)))
}

// Middle shortens a text to n characters by leaving out its middle.
func Middle(text string, n int) string {
	if all := []rune(text); len(all) > n {
		return string(all[:n/2]) + "…" + string(all[len(all)-(n-n/2-1):])
	}
	return text
}

// Beginning is at most n bytes of a text, and cuts no character in two.
func Beginning(text []byte, n int) []byte {
	end := min(len(text), n)
	for end < len(text) && end > n-utf8.UTFMax && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// Shares writes a name alone, and several with their counts, the largest first.
func Shares(
	counts map[string]int, name func(string) string, number func(int) string,
) string {
	const shown = 3
	names := slices.SortedFunc(maps.Keys(counts), func(x, y string) int {
		return cmp.Or(counts[y]-counts[x], strings.Compare(x, y))
	})
	var list []string
	for _, n := range names[:min(len(names), shown)] {
		text := name(n)
		if len(names) > 1 {
			text += " " + number(counts[n])
		}
		list = append(list, text)
	}
	if left := len(names) - shown; left > 0 {
		list = append(list, number(left)+" more")
	}
	return strings.Join(list, ", ")
}

// Rate reads a rate, as messages a second. An empty text is 0: as fast as possible.
func Rate(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	number, unit, _ := strings.Cut(text, "/")
	n, err := strconv.ParseFloat(number, 64)
	per, ok := map[string]float64{"": 1, "s": 1, "m": 60, "h": 3600}[unit]
	if err != nil || !ok || !(n > 0) || n > 1e9 {
		return 0, fmt.Errorf("%q: write 50/s, 600/m or 50", text)
	}
	return n / per, nil
}

// Steps reads the sizes of steps, separated by commas or spaces.
func Steps(text string) (steps []int, err error) {
	for _, size := range strings.FieldsFunc(text, func(c rune) bool { return c == ',' || c == ' ' }) {
		n, err := strconv.Atoi(size)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q: write the numbers of letters, as in 1,10,100", text)
		}
		steps = append(steps, n)
	}
	return steps, nil
}

// Caused returns the filter with a look at the letters that it chooses: cause gets the error of the
// first, or of the first of each group, if the filter names groups.
func Caused(f operate.Filter, cause *string) operate.Filter {
	several, texts := strings.Contains(f.Group, ","), []string(nil)
	if match := f.Match; f.Group != "" {
		f.Match = func(l operate.Letter) bool {
			is := match == nil || match(l)
			if is && (*cause == "" || several && len(*cause) < 1000) {
				_, text := operate.Fingerprint(l)
				if !slices.Contains(texts, text) {
					texts = append(texts, text)
					*cause = strings.Join(texts, " or ")
				}
			}
			return is
		}
	}
	return f
}

// Chosen is a filter as people read it: without payloads, and with the cause, if it is known, in
// place of the ID of its group.
func Chosen(f operate.Filter, cause string) string {
	if cause == "" {
		return f.Redacted()
	}
	f.Group = ""
	return strings.TrimSpace(fmt.Sprintf("cause=%q %s", cause, f.Redacted()))
}
