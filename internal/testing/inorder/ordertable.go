package main

import (
	"fmt"
	"slices"
	"time"
)

// print writes the table of a run.
func (r result) print(c config) {
	row := func(name string, format string, args ...any) {
		fmt.Fprintf(c.Out, "  %-24s %s\n", name, fmt.Sprintf(format, args...))
	}
	mode := "in order"
	if c.Unordered {
		mode = "without the option"
	}
	if c.Block {
		mode = "in order, dead letters block"
	}
	fmt.Fprintf(c.Out, "\nRabbitMQ %s, seed %d, %s, faults for %s\n", r.Version, c.Seed, mode,
		c.Length)
	row("messages confirmed", "%d of %d keys; %d published again after a lost confirm", r.Messages,
		c.Keys, r.Again)
	row("over", "%d handled, %d gave up, %d dead letters", r.Handled, r.Dead, r.Letters)
	row("handlings", "%d, of which %d failed", r.Handlings, r.Failures)
	row("faults", "%s", r.faults())
	row("inversions", "%d", len(r.Inversions))
	if c.Block {
		row("blocked keys", "%d, %d released, %d replayed, %d edited; %d messages began before",
			r.Blocked, r.Released, r.Replayed, r.Edited, len(r.Passed))
	}
	row("lost", "%d", len(r.Lost))
	row("left on the broker", "%s", r.unfinished())
	row("stalls", "%d; the longest wait after the faults was %s", len(r.Stalls),
		r.Latest.Round(time.Millisecond))
	row("handled again", "%d", r.Duplicates)
	row("overlaps of a key", "%d in two instances, %d in one, %d after a lost connection or a freeze",
		len(r.Overlaps), len(r.InOne), r.Excused)
	row("ends after a freeze", "%d, of which %d while the key was handled elsewhere", r.Zombies,
		r.Overtaken)
	row("fencing tokens", "%d; %d handlings began with an older one, %d more after a fault; %d were "+
		"of two instances", r.report.Tokens, len(r.Stale), r.Late, len(r.Shared))
	row("dead letters by mistake", "%d", len(r.Unexplained))
	row("besides", "%d instances ended by themselves, %d tokens in the line at the end", r.Ended,
		r.Tokens)
	for _, list := range [][]string{
		r.Inversions, r.Passed, r.Overlaps, r.InOne, r.Stalls, r.Shared, r.Stale, r.Unexplained, r.Failed,
	} {
		for _, line := range list[:min(mostListed, len(list))] {
			fmt.Fprintln(c.Out, "   ", line)
		}
		if len(list) > mostListed {
			fmt.Fprintf(c.Out, "    … and %d more\n", len(list)-mostListed)
		}
	}
}

func (r result) faults() string {
	text := ""
	for _, f := range faults {
		text += fmt.Sprintf("%s %d, ", f, r.Faults[f])
	}
	return fmt.Sprintf("%s%d not done", text, len(r.Failed))
}

func (r result) unfinished() string {
	var all []string
	for queue, count := range r.Unfinished {
		if count > 0 {
			all = append(all, fmt.Sprintf("%s %d", queue, count))
		}
	}
	slices.Sort(all)
	if len(all) == 0 {
		return "none"
	}
	return fmt.Sprint(all)
}
