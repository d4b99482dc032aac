package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/topology/operate/doctor"
)

func (a app) doctor() *cli.Command {
	return &cli.Command{
		Name: "doctor", Usage: "check the facts about this broker that the guarantee rests on, " +
			"in scratch queues",
		ArgsUsage: "[QUEUE…]",
		Description: "The queues millpond.doctor.* are made and removed; no other queue is touched. It takes " +
			"less\nthan a minute. With the names of queues it also checks the user's permissions for " +
			"them and\nthe policies that match them. Exits 1 if something differs that the guarantee needs.",
		Flags: []cli.Flag{
			&cli.DurationFlag{
				Name: "patience", Value: 15 * time.Second, Usage: "how long the slow checks look: 4m sees a " +
					"held message arrive, 35m the consumer timeout",
			},
			&cli.BoolFlag{
				Name: "long", Usage: "print of every check the expectation and the meaning, " +
					"not only where it differs or is unknown",
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
	if url := c.String(flagManagement); url != "" {
		options = append(options, doctor.WithManagement(url))
	}
	if c.Bool(flagProvisioned) {
		options = append(options, doctor.WithPreProvisioned())
	}
	for _, queue := range c.Args().Slice() {
		plan, err := a.planOf(c, queue)
		if err != nil {
			return err
		}
		options = append(options, doctor.WithPlan(plan))
	}
	if c.NArg() > 0 {
		a.assumes(c)
	}
	if a.terminal(a.err) {
		fmt.Fprintf(a.err, "millpond: looking for %v…\n", c.Duration("patience"))
	}
	report, err := doctor.Examine(ctx, cmp.Or(c.String(flagURL), defaultURL), options...)
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

// The report is written for a terminal of 80 columns.
const (
	reportWidth  = 80
	statusColumn = 9
	nameColumn   = 20
)

func (a app) printReport(r *doctor.Report, long bool) {
	count := map[doctor.Status]int{}
	for _, c := range r.Checks {
		count[c.Status]++
	}
	summary := fmt.Sprintf("%s %s at %s, vhost %q: %d differ, %d unknown, %d ok, in %v",
		cmp.Or(r.Product, "a broker"), r.Version, r.Address, r.VHost, count[doctor.Differs],
		count[doctor.Unknown], count[doctor.OK], r.Took.Round(100*time.Millisecond))
	a.wrapped("", harmless(summary))
	colours := map[doctor.Status]string{
		doctor.OK: green, doctor.Unknown: yellow, doctor.Differs: red,
	}
	for _, c := range r.Checks {
		fmt.Fprint(a.out, a.colour(colours[c.Status], string(c.Status)),
			strings.Repeat(" ", statusColumn-len(c.Status)))
		if c.Status == doctor.OK && !long {
			name := fmt.Sprintf("%-*s", nameColumn, harmless(c.Name))
			a.wrapped(strings.Repeat(" ", statusColumn+nameColumn), name+" "+harmless(c.Seen))
			continue
		}
		about := c.Name
		if c.Status == doctor.Differs && !c.Needed {
			about += " (costs no message)"
		}
		fmt.Fprintln(a.out, harmless(about))
		meaning := c.Meaning
		if c.Fact != "" {
			meaning += " [" + c.Fact + "]"
		}
		for _, part := range [][2]string{
			{"expected", c.Expected}, {"seen", c.Seen}, {"meaning", meaning},
		} {
			for i, line := range strings.Split(part[1], "\n") {
				label := part[0]
				if i > 0 {
					label = ""
				}
				fmt.Fprintf(a.out, "%*s%-*s", statusColumn, "", statusColumn, label)
				a.wrapped(strings.Repeat(" ", 2*statusColumn), harmless(line))
			}
		}
	}
}

// wrapped writes text whose first line follows as much as indent is long; no word is cut.
func (a app) wrapped(indent, text string) {
	for line := ""; ; line = "" {
		words := strings.SplitAfter(text, " ")
		for len(words) > 0 && (line == "" ||
			len([]rune(indent+line+strings.TrimSpace(words[0]))) <= reportWidth) {
			line, words = line+words[0], words[1:]
		}
		fmt.Fprintln(a.out, strings.TrimRight(line, " "))
		if text = strings.Join(words, ""); text == "" {
			return
		}
		fmt.Fprint(a.out, indent)
	}
}
