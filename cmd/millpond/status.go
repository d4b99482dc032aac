package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

func (a app) status() *cli.Command {
	return &cli.Command{
		Name: "status", Usage: "count messages that are ready, wait, are dead and are stranded; with " +
			"names of queues also the findings of verify",
		ArgsUsage: "[QUEUE…]",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Usage: "a line for each queue, also where nothing is wrong"},
			&cli.BoolFlag{Name: "watch", Usage: "again and again"},
			&cli.DurationFlag{Name: "interval", Usage: "of --watch", Value: 2 * time.Second},
		},
		ShellComplete: a.completeQueues,
		Action: func(ctx context.Context, c *cli.Command) error {
			a.last = new(operate.View)
			for {
				err := a.statusOnce(ctx, c, c.Args().Slice())
				if err != nil || !c.Bool("watch") {
					return err
				}
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(max(c.Duration("interval"), 100*time.Millisecond)):
				}
			}
		},
	}
}

func (a app) statusOnce(ctx context.Context, c *cli.Command, queues []string) error {
	return a.opened(ctx, c, func(s *session) error {
		var plans []topology.Plan
		all := len(queues) == 0 && s.vhost != nil
		if !all {
			var err error
			if plans, err = s.plans(queues); err != nil {
				return err
			}
		}
		if c.Bool("watch") && a.terminal(a.out) {
			fmt.Fprint(a.out, "\x1b[H\x1b[2J")
		}
		if all {
			return s.overview()
		}
		if s.vhost != nil && !c.Bool(flagJSON) {
			s.printStopped()
		}
		return s.reports(ctx, plans)
	})
}

// reports prints each queue of the plans, and the findings.
func (s *session) reports(ctx context.Context, plans []topology.Plan) error {
	all := []operate.Report{}
	for _, plan := range plans {
		report, err := s.verify(ctx, plan)
		if err != nil {
			return err
		}
		if all = append(all, report); !s.c.Bool(flagJSON) {
			fmt.Fprint(s.out, report)
			s.printFindings(s.news(report.Findings), "")
		}
	}
	if s.c.Bool(flagJSON) {
		return s.printSnakeJSON(all)
	}
	return nil
}

const (
	// mostTrouble is the most queues in trouble that the overview shows without --all.
	mostTrouble = 30
	// maxUnclear is the most things that the overview names because the broker does not tell them.
	maxUnclear = 5
	// fewQueues is the number of queues up to which the overview shows all.
	fewQueues = 20
)

// overview prints the stopped brakes, and a line for each queue that was found, the queues in
// trouble first.
func (s *session) overview() error {
	lines, inTrouble := s.vhost.ByTrouble()
	if s.c.Bool(flagJSON) {
		return s.printSnakeJSON(s.vhost)
	}
	s.printStopped()
	if s.vhost.Empty() {
		s.nothingFound()
		return nil
	}
	s.lost()
	shown := len(lines)
	if !s.c.Bool("all") && len(lines) > fewQueues {
		shown = min(inTrouble, mostTrouble)
	}
	rows := [][]string{
		{"queue", "ready", "in progress", "waiting", "dead", "consumers", "trouble"},
	}
	for _, l := range lines[:shown] {
		waiting := number(l.Waiting)
		if l.WaitingShared && l.Waiting.N > 0 {
			waiting = "≤" + waiting
		}
		rows = append(rows, []string{
			l.Name, number(l.Ready), number(l.Unacked), waiting, number(l.DeadLetters),
			number(l.Consumers), orDash(strings.Join(l.Trouble, ", ")),
		})
	}
	if shown > 0 {
		if err := s.table(rows); err != nil {
			return err
		}
	}
	if left := inTrouble - shown; left > 0 {
		fmt.Fprintf(s.out, "… and %d more in trouble; --all prints them\n", left)
	}
	if fine := len(lines) - max(inTrouble, shown); fine > 0 {
		fmt.Fprintf(s.out, "%s without trouble; --all prints them\n", plural(fine, "queue"))
	}
	s.notKnown(s.out)
	from := "ready messages and consumers are counted now, messages in progress and held some " +
		"seconds ago"
	if len(lines) > 0 && lines[0].Ready.Source != operate.SourceAMQP {
		from = "all messages were counted some seconds ago"
	}
	_, err := fmt.Fprintf(s.out, "%s; ? is not counted yet\n", from)
	return err
}

// notKnown prints everything that the broker does not tell.
func (s *session) notKnown(w io.Writer) {
	for _, q := range s.vhost.Unclaimed {
		if q.Total.N != 0 {
			fmt.Fprintf(w, "queue %s has %s and the arguments of a dead-letter queue; whose letters they "+
				"are is not known: --dlq names it\n", harmless(q.Name), messages(q.Total))
		}
	}
	for i, u := range s.vhost.Unclear {
		if i == maxUnclear {
			fmt.Fprintf(w, "… and %d more that the broker does not tell; status --json prints them\n",
				len(s.vhost.Unclear)-i)
			break
		}
		fmt.Fprintf(w, "not known: %s\n", harmless(u.Text))
	}
}

// lost prints the messages that have no queue to return to.
func (s *session) lost() {
	for _, q := range s.vhost.Stranded {
		if q.Total.N != 0 {
			fmt.Fprintln(s.out, s.colour(red, fmt.Sprintf("stranded: %s in queue %s: see millpond stranded "+
				"list", messages(q.Total), harmless(q.Name))))
		}
	}
	s.printGone(s.vhost.Gone)
	for _, o := range s.vhost.Orphans {
		if s.vhost.Announces(o) {
			continue
		}
		code, held := yellow, ""
		if o.Total.N != 0 {
			code, held = red, "; it has "+messages(o.Total)
		}
		fmt.Fprintln(s.out, s.colour(code, fmt.Sprintf("wait queue %s leads to no queue: %s%s",
			harmless(o.Name), harmless(o.Why), held)))
	}
}

// printGone prints the messages that wait for queues that are gone.
func (s *session) printGone(gone []operate.Gone) {
	for _, g := range gone {
		fmt.Fprintln(s.out, s.colour(red, "waiting: "+harmless(g.String())))
	}
}

func number(c operate.Count) string {
	if !c.Known() {
		return "?"
	}
	return fmt.Sprint(c.N)
}

func messages(c operate.Count) string {
	if !c.Known() {
		return "an unknown number of messages"
	}
	return plural(c.N, "message")
}
