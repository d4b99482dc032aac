package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/cmd/millpond/internal/history"
	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
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
			a.last, a.past = new(operate.View), new(history.History)
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
			if plans, err = s.plansOf(queues); err != nil {
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
			s.printIncidents(slices.DeleteFunc(s.incidents(), func(i operate.Incident) bool {
				return !slices.ContainsFunc(plans, func(p topology.Plan) bool { return i.Concerns(p.Queue) })
			}))
		}
		reports := []operate.Report{}
		for _, plan := range plans {
			report, err := s.verify(ctx, plan)
			if err != nil {
				return err
			}
			if reports = append(reports, report); !c.Bool(flagJSON) {
				fmt.Fprint(a.out, report)
				s.printFindings(s.news(report.Findings), "")
			}
		}
		if c.Bool(flagJSON) {
			return s.printSnakeJSON(reports)
		}
		return nil
	})
}

const (
	// mostTrouble is the most incidents, and queues with some, that the overview shows without --all.
	mostTrouble = 30
	// maxUnclear is the most things that the overview names because the broker does not tell them.
	maxUnclear = 5
	// fewQueues is the number of queues up to which the overview shows all.
	fewQueues = 20
	// width is the most columns of the overview, and nameWidth those of a name.
	width, nameWidth = 100, 36
)

// overview prints the incidents by urgency, and a line for each queue that was found, the queues
// with incidents first.
func (s *session) overview() error {
	incidents := s.incidents()
	if s.c.Bool(flagJSON) {
		return s.printSnakeJSON(struct {
			operate.View
			Incidents []operate.Incident
		}{*s.vhost, orEmpty(incidents)})
	}
	if s.vhost.Empty() {
		s.printIncidents(incidents)
		s.nothingFound()
		return nil
	}
	lines, of := s.vhost.ByUrgency(incidents)
	inTrouble := slices.IndexFunc(lines, func(m operate.Main) bool { return len(of[m.Name]) == 0 })
	if inTrouble < 0 {
		inTrouble = len(lines)
	}
	shown := len(lines)
	if !s.c.Bool("all") {
		if more := len(incidents) - mostTrouble; more > 0 {
			defer fmt.Fprintf(s.out, "%s; --all prints all\n", plural(more, "more incident"))
			incidents = incidents[:mostTrouble]
		}
		if shown > fewQueues {
			shown = min(inTrouble, mostTrouble)
		}
	}
	if s.printIncidents(incidents); len(incidents) > 0 {
		fmt.Fprintln(s.out)
	}
	rows := [][]string{{"queue", "ready", "in progress", "waiting", "dead", "consumers"}}
	for _, l := range lines[:shown] {
		waiting := number(l.Waiting)
		if l.WaitingShared && l.Waiting.N > 0 {
			waiting = "≤" + waiting
		}
		rows = append(rows, []string{
			overview.Middle(harmless(l.Name), nameWidth), number(l.Ready), number(l.Unacked), waiting,
			number(l.DeadLetters), number(l.Consumers),
		})
	}
	if shown > 0 {
		if err := s.table(rows); err != nil {
			return err
		}
	}
	if left := inTrouble - shown; left > 0 {
		fmt.Fprintf(s.out, "… and %d more with incidents; --all prints them\n", left)
	}
	if fine := len(lines) - max(inTrouble, shown); fine > 0 {
		fmt.Fprintf(s.out, "%s without incidents; --all prints them\n", plural(fine, "queue"))
	}
	s.notKnown(s.out)
	from := "ready messages and consumers are counted now, others some seconds ago"
	if len(lines) > 0 && lines[0].Ready.Source != operate.SourceAMQP {
		from = "all messages were counted some seconds ago"
	}
	_, err := fmt.Fprintf(s.out, "%s; ? is not known\n", from)
	return err
}

// incidents are those of the last look. status --watch knows since when, and how they grow.
func (s *session) incidents() []operate.Incident {
	if s.past == nil {
		return s.vhost.Incidents(operate.IncidentOptions{})
	}
	return s.past.Look(time.Now(), *s.vhost, strconv.Quote)
}

// ways are the commands that show more of an incident.
var ways = map[operate.IncidentKind]string{
	operate.IncidentStranded: "stranded list", operate.IncidentBlocked: "order list",
	operate.IncidentBrake: "brake start", operate.IncidentPolicy: "verify",
}

// printIncidents prints a sentence for each incident, in lines of at most a hundred columns.
func (s *session) printIncidents(list []operate.Incident) {
	names, wide := make([]string, len(list)), 0
	for n, i := range list {
		names[n] = i.Queue
		if i.Brake != "" {
			names[n] = "brake " + i.Brake
		}
		names[n] = overview.Middle(harmless(names[n]), nameWidth)
		wide = max(wide, utf8.RuneCountInString(names[n]))
	}
	for n, i := range list {
		text := i.Text
		switch {
		case i.Since.IsZero():
			text += ", since ?"
		case i.Longer:
			text += ", since before " + when(i.Since)
		default:
			text += ", since " + when(i.Since)
		}
		if growth := overview.Growth(i, time.Now()); growth != "" {
			text += ", " + growth
		}
		if len(i.Queues) > 0 {
			text += "; not consumed: " + some(i.Queues)
		}
		if way := ways[i.Kind]; way != "" {
			text += "; millpond " + way
		}
		code := yellow
		if i.Urgency <= 3 {
			code = red
		}
		name := names[n]
		for _, line := range wrap(harmless(text), width-wide-2, true) {
			fmt.Fprintln(s.out, s.colour(code, fmt.Sprintf("%-*s  %s", wide, name, line)))
			name = ""
		}
	}
}

// wrap breaks a text between words into lines of at most n characters. A longer word has a line of
// its own, or is cut. A time is one word.
func wrap(text string, n int, cut bool) (lines []string) {
	var line []rune
	for _, word := range strings.Fields(aTime.ReplaceAllString(text, "$1\x00$2")) {
		rest := []rune(strings.ReplaceAll(word, "\x00", " "))
		if len(line) > 0 && len(line)+1+len(rest) > n {
			lines, line = append(lines, string(line)), nil
		}
		if len(line) > 0 {
			line = append(line, ' ')
		}
		for line = append(line, rest...); cut && len(line) > n; line = line[n:] {
			lines = append(lines, string(line[:n]))
		}
	}
	return append(lines, string(line))
}

var aTime = regexp.MustCompile(`(\d{4}-\d\d-\d\d) (\d\d:)`)

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
