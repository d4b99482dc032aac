// Package overview writes the numbers of an operate.View.
package overview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
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
