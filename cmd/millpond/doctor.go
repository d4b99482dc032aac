package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate/doctor"
)

func (a app) doctor() *cli.Command {
	return &cli.Command{
		Name: "doctor", Usage: "check the facts about this broker that the guarantee rests on, " +
			"in scratch queues",
		ArgsUsage: "[QUEUE…]", ShellComplete: a.completeQueues,
		Description: "It makes the queues millpond.doctor.* and removes them; no other queue is " +
			"touched. It takes\nless than a minute. For queues with retries it also checks the " +
			"permissions of the user\nand the policies that match them. " +
			"Exits 1 if something differs that the guarantee needs.",
		Flags: []cli.Flag{
			&cli.DurationFlag{
				Name: "patience", Value: 15 * time.Second, Usage: "how long the slow checks look: 4m sees a " +
					"held message arrive, 35m the consumer timeout",
			},
			&cli.BoolFlag{
				Name: "long", Usage: "print the expectation and the meaning of every check, " +
					"not only where it differs",
			},
		},
		Action: a.examine,
	}
}

func (a app) examine(ctx context.Context, c *cli.Command) error {
	options := []doctor.Option{doctor.WithPatience(c.Duration("patience"))}
	if d := c.Duration("patience"); d < time.Second || d > 24*time.Hour {
		return usage("--patience %v is not from 1s to 24h", d)
	}
	err := a.opened(ctx, c, func(s *session) error {
		if s.api != "" {
			options = append(options, doctor.WithManagement(s.api))
		}
		plans, err := s.examined(c.Args().Slice())
		for _, plan := range plans {
			options = append(options, doctor.WithPlan(plan))
		}
		return err
	})
	if err != nil {
		return err
	}
	if c.Bool(flagProvisioned) {
		options = append(options, doctor.WithPreProvisioned())
	}
	if a.terminal(a.err) {
		fmt.Fprintf(a.err, "millpond: looking for %v…\n", c.Duration("patience"))
	}
	report, err := doctor.Examine(ctx, addressOf(c), options...)
	if report == nil {
		return err
	}
	if c.Bool(flagJSON) {
		printed := struct {
			*doctor.Report
			Took string
		}{report, report.Took.Round(time.Millisecond).String()}
		if err := a.printSnakeJSON(printed); err != nil {
			return err
		}
	} else {
		a.printReport(report, c.Bool("long"))
	}
	if err == nil && len(report.Unsafe()) > 0 {
		return errFound
	}
	return err
}

// maxExamined is the most queues that doctor looks at without names.
const maxExamined = 20

// examined returns the plans of the named queues, or of the first that were found.
func (s *session) examined(queues []string) ([]topology.Plan, error) {
	if s.vhost == nil && len(queues) == 0 || s.vhost != nil && len(s.vhost.Mains) == 0 {
		return nil, nil
	}
	plans, err := s.plansOf(queues)
	if len(queues) == 0 && len(plans) > maxExamined {
		fmt.Fprintf(s.err, "millpond: rights and policies are checked for %d of %d queues: name "+
			"the others\n", maxExamined, len(plans))
		plans = plans[:maxExamined]
	}
	return plans, err
}

// The report is written for a terminal of 80 columns.
const (
	reportWidth  = 80
	statusColumn = 9
	nameColumn   = 20
	labelColumn  = 10
)

func (a app) printReport(r *doctor.Report, long bool) {
	count := map[doctor.Status]int{}
	for _, c := range r.Checks {
		count[c.Status]++
	}
	a.wrapped(0, fmt.Sprintf("%s %s at %s: %d differ, %d unknown, %d ok, in %v",
		cmp.Or(r.Product, "a broker"), r.Version, r.Address, count[doctor.Differs],
		count[doctor.Unknown], count[doctor.OK], r.Took.Round(100*time.Millisecond)))
	for _, c := range r.Checks {
		a.printCheck(c, long || c.Status == doctor.Differs)
	}
	if !long {
		a.wrapped(0, "--long prints the expectation and the meaning of every line.")
	}
}

func (a app) printCheck(c doctor.Check, long bool) {
	colours := map[doctor.Status]string{
		doctor.OK: green, doctor.Unknown: yellow, doctor.Differs: red,
	}
	fmt.Fprint(a.out, a.colour(colours[c.Status], string(c.Status)),
		strings.Repeat(" ", statusColumn-len(c.Status)))
	name := harmless(c.Name)
	if !long {
		const column = statusColumn + nameColumn
		if fmt.Fprintf(a.out, "%-*s", nameColumn, name); len([]rune(name)) >= nameColumn {
			fmt.Fprintf(a.out, "\n%*s", column, "")
		}
		a.wrapped(column, c.Seen)
		return
	}
	if c.Status == doctor.Differs && !c.Needed {
		name += " (the guarantee does not need it)"
	}
	fmt.Fprintln(a.out, name)
	meaning := c.Meaning
	if c.Fact != "" {
		meaning += " [" + c.Fact + " of docs/notes/broker-facts.md]"
	}
	for _, part := range [][2]string{
		{"expected", c.Expected}, {"seen", c.Seen}, {"meaning", meaning},
	} {
		fmt.Fprintf(a.out, "%*s%-*s", statusColumn, "", labelColumn, part[0])
		a.wrapped(statusColumn+labelColumn, part[1])
	}
}

// wrapped writes text that begins in a column, and goes on there in further lines. No word is cut.
func (a app) wrapped(column int, text string) {
	indent := ""
	for _, line := range strings.FieldsFunc(text, func(c rune) bool { return c == '\n' }) {
		for _, part := range wrap(harmless(line), reportWidth-column, false) {
			fmt.Fprintln(a.out, indent+part)
			indent = strings.Repeat(" ", column)
		}
	}
}
