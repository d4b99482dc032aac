package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// String is the report as text, one subject a line.
func (r Report) String() string {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	row("messages", "%d confirmed, %d handled, %d dead letters", r.Messages, r.Handled, r.Dead)
	row("lost", "%d", len(r.Lost))
	again := r.Duplicates()
	row("made again",
		"%d explained, %d unexplained; %d messages handled again, %d dead-lettered again, %d both",
		again.Explained, again.Unexplained, r.HandledAgain, r.DeadAgain, r.Both)
	for _, why := range slices.Sorted(maps.Keys(r.Again)) {
		row("", "%s: %d explained, %d unexplained", why, r.Again[why].Explained, r.Again[why].Unexplained)
	}
	row("attempts", "%d beyond the limit, %d counted without a call", len(r.Beyond), len(r.Skipped))
	row("misplaced", "%d dead letters, and %d by the crash guard", len(r.Misplaced), r.CrashLoops)
	total := 0
	for _, times := range r.Faults {
		total += times
	}
	row("faults", "%d%s", total, byName(r.Faults))
	for _, f := range r.Failed {
		row("", "not done: %s", f)
	}
	if r.Recovery > 0 {
		row("recovery", "%s at the longest, after %s", r.Recovery.Round(time.Millisecond),
			r.RecoveredFrom)
	}
	if r.Latest > 0 {
		row("lateness", "%s more than its delay at the most (%s)", r.Latest.Round(time.Millisecond),
			r.LatestRetry)
	}
	return b.String()
}

// byName lists counts: " (a 1, b 2)".
func byName[K ~string](counts map[K]int) string {
	if len(counts) == 0 {
		return ""
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// Row is the report as a row of the table in docs/chaos.md.
func (r Report) Row(seed uint64, strategy, version string, minutes float64) string {
	kills, again := r.Faults[KillNode]+2*r.Faults[KillMajority], r.Duplicates()
	return fmt.Sprintf("| %s | %d | `%s` | %.1f | %d | %d | %d | %d | %d | %d | %d | %d | %d | %d | %.0f s | %.0f s |",
		version, seed, strategy, minutes, r.Messages, kills, r.Faults[FreezeNode], r.Faults[Minority],
		r.Faults[DelayConfirms],
		r.Faults[KillConsumer], len(r.Lost), again.Explained, again.Unexplained,
		len(r.Beyond)+len(r.Skipped), r.Recovery.Seconds(), r.Latest.Seconds())
}
