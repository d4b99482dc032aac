package main

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/topology/operate"
)

func (a app) deadGroups() *cli.Command {
	return &cli.Command{
		Name: "groups", Usage: "dead letters by cause, the most frequent first; --json has the counts " +
			"by queue, handler and reason, and the sample's error",
		ArgsUsage: "[QUEUE…]", ShellComplete: a.completeQueues,
		Description: "Letters have one cause if their errors are the same without numbers, ids,\n" +
			"addresses and texts in quotes. The ID of a group is a filter: --group ID.",
		Flags: filterFlags(),
		Action: a.onLetters(func(ctx context.Context, l *letters) error {
			groups, err := operate.GroupByError(l.watched(ctx))
			if err != nil {
				return err
			}
			return a.groups(l.c, l.plan.Queue, groups)
		}),
	}
}

// watched returns the chosen letters, and shows on a terminal how far it is.
func (l *letters) watched(ctx context.Context) iter.Seq2[operate.Letter, error] {
	dead := l.operator.Dead(ctx, l.plan, l.filter, l.limit)
	bar := l.newBar("looking")
	if !bar.active {
		return dead
	}
	main, _ := l.found(l.plan.Queue) // 0 letters where the broker has not counted them
	return func(yield func(operate.Letter, error) bool) {
		defer fmt.Fprint(l.err, "\r\x1b[K")
		for letter, err := range dead {
			if n := letter.Position; err == nil {
				bar.show(operate.Progress{Total: max(main.DeadLetters.N, n), Seen: n, Done: n})
			}
			if !yield(letter, err) {
				return
			}
		}
	}
}

// groups writes groups of the dead letters of a queue. The column of the queues is there only where
// the letters are not all of that queue.
func (a app) groups(c *cli.Command, queue string, groups []operate.Group) error {
	if c.Bool(flagJSON) {
		return a.printJSON(groups)
	}
	if len(groups) == 0 {
		_, err := fmt.Fprint(a.out, noLetters)
		return err
	}
	const queues = 4 // of the columns
	several := slices.ContainsFunc(groups, func(g operate.Group) bool {
		return g.Queues[queue] < g.Count
	})
	rows := [][]string{{
		"count", "group", "reason", "handler", "queue", "first", "last", "sample", "error",
	}}
	for _, g := range groups {
		rows = append(rows, []string{
			strconv.Itoa(g.Count), orDash(g.ID), shares(g.Reasons), shares(g.Handlers), shares(g.Queues),
			when(g.First), when(g.Last), g.Sample.ID, g.Error,
		})
	}
	for i, row := range rows {
		if !several {
			rows[i] = slices.Delete(row, queues, queues+1)
		}
	}
	return a.table(rows)
}

func shares(counts map[string]int) string {
	return overview.Shares(counts, orDash, strconv.Itoa)
}
