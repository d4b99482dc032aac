package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// doneJSON is the outcome of a command.
type doneJSON struct {
	Queue string `json:"queue,omitempty"`
	operate.Progress
	DryRun bool   `json:"dry_run,omitempty"`
	Error  string `json:"error,omitempty"`
}

// The messages that a command moves.
const (
	deadLetter      = "dead letter"
	strandedMessage = "stranded message"
)

// move moves messages, with a bar, and reports. The verb is discard, for example.
func (s *session) move(
	queue, verb, one string, options operate.MoveOptions,
	do func(operate.MoveOptions) (operate.Progress, error),
) error {
	stem := strings.TrimSuffix(verb, "e")
	bar := s.newBar(stem + "ing")
	options.Progress, options.DryRun = bar.show, s.c.Bool("dry-run")
	var p operate.Progress
	err := s.audited(s.c, queue, &options.Filter, func(e *auditlog.Entry) (err error) {
		p, err = do(options)
		e.Count, e.Done = p.Chosen-p.Refused, p.Done
		s.note(e, p, err)
		return err
	})
	bar.end()
	return s.report(queue, stem+"ed", one, p, err)
}

// note notes in the audit log why a command without an error has moved nothing, or not all.
func (s *session) note(e *auditlog.Entry, p operate.Progress, err error) {
	switch failed := matched(s.c, p, err); {
	case err != nil:
	case p.Chosen == 0 && s.several:
		e.What += noneChosen
	case failed != nil:
		e.Error = failed.Error()
	case len(p.Left) > 0:
		e.Error = strings.Join(leftTexts(p), "; ")
	case p.Chosen == 0:
		e.Count = p.Total
	}
}

// report writes the outcome, also where the command ended with an error. one names a message.
func (s *session) report(queue, verb, one string, p operate.Progress, err error) error {
	c, left := s.c, 0 // messages that stay for want of their queues
	for _, l := range p.Left {
		left += l.Messages
	}
	code := matched(c, p, err)
	if code == nil && left > 0 {
		code = errFound
	}
	if c.Bool(flagJSON) {
		return errors.Join(code, s.printJSON(doneJSON{queue, p, c.Bool("dry-run"), errorText(err)}))
	}
	switch {
	case err != nil && p.Seen == 0: // no message was looked at
	case c.Bool("dry-run"):
		fmt.Fprintf(s.out, "would have %s %s of %d; nothing was changed\n",
			verb, plural(p.Chosen-left-p.Refused, one), p.Total)
	default:
		kept := ""
		if name := c.String("export"); name != "" && p.Done > 0 {
			kept = ", kept in " + harmless(name)
		}
		fmt.Fprintf(s.out, "%s %s of %d%s\n", verb, plural(p.Done, one), p.Total, kept)
	}
	s.printPassed(p)
	for _, text := range leftTexts(p) {
		fmt.Fprintln(s.out, text)
	}
	return code
}

// leftTexts say how many messages stay for want of their queues, and why.
func leftTexts(p operate.Progress) (texts []string) {
	for _, l := range p.Left {
		why := fmt.Sprintf("queue %q does not exist or cannot be reached; --to names another", l.Queue)
		switch l.Queue {
		case "":
			why = "no header names the queue; name one with --to"
		case operate.OtherQueues:
			why = "their queues do not exist or cannot be reached; --to names another"
		}
		texts = append(texts, fmt.Sprintf("%s left: %s", plural(l.Messages, "message"), why))
	}
	return texts
}

// matched returns a notThere where --id or --group has chosen nothing, else err. Positions are
// checked before.
func matched(c *cli.Command, p operate.Progress, err error) error {
	ids, group := c.StringSlice("id"), c.String("group")
	switch {
	case err != nil, p.Chosen > 0, len(ids) == 0 && (group == "" || p.Spent+p.Foreign > 0),
		slices.ContainsFunc(ids, position.MatchString):
		return err
	case p.Foreign > 0:
		return notFound("the message belongs to another queue: name it with --to")
	case len(ids) == 0:
		return notFound("no dead letter of cause %s; millpond dead groups lists them", group)
	}
	return notFound("there is no message with the ID %s: list the queue again",
		strings.Join(ids, ", "))
}

func dryRun() cli.Flag { return &cli.BoolFlag{Name: "dry-run", Usage: "count, and change nothing"} }

func (a app) deadReplay() *cli.Command {
	return &cli.Command{
		Name: "replay", Usage: "move dead letters back, each confirmed in its queue " +
			"before it leaves the dead-letter queue",
		ArgsUsage: "[QUEUE…]", Description: aboutQueues + aboutPositions + aboutRamps,
		ShellComplete: a.completeQueues,
		Flags: a.deadLetters().acting(append(slices.Concat(rampFlags(), editFlags(), goingFlags()),
			rehearsal())...),
		Action: func(ctx context.Context, c *cli.Command) error {
			rate, err := overview.Rate(c.String("rate"))
			if err != nil {
				return usage("--rate %v", err)
			}
			if c.IsSet("edit") {
				return a.editOne(ctx, c)
			}
			changes, err := changesOf(c)
			if err != nil {
				return err
			}
			return a.onChosen(a.deadLetters(), func(ctx context.Context, l *letters) error {
				shared := slices.ContainsFunc(l.plans, func(other topology.Plan) bool {
					return other.Queue != l.plan.Queue && other.Dead.RoutingKey == l.from()
				})
				options := operate.MoveOptions{
					Filter: l.filter, Limit: l.limit, Rate: rate, To: c.String("to"), Named: shared,
				}
				switch {
				case changes != nil && ramps(c):
					return usage("letters are changed all at once: leave out --canary and the like")
				case changes != nil:
					options.DryRun = c.Bool("dry-run")
					return l.replayChanged(ctx, options, changes)
				}
				ramp, err := rampOptions(c, options)
				switch {
				case err != nil:
					return err
				case c.Bool("dry-run"):
					return l.rehearse(ctx, ramp.RampOptions)
				case ramps(c):
					return l.ramp(ctx, ramp)
				}
				return l.replay(ctx, options)
			})(ctx, c)
		},
	}
}

func (l *letters) replay(ctx context.Context, options operate.MoveOptions) error {
	return l.move(l.plan.Queue, "replay", deadLetter, options,
		func(o operate.MoveOptions) (operate.Progress, error) {
			return l.operator.Replay(ctx, l.plan, o)
		})
}

// goingFlags say where messages go, and how fast.
func goingFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{
			Name: "rate", Usage: "how many, as in 50/s, 600/m or 50; as fast as possible without it",
		},
		&cli.StringFlag{Name: "to", Usage: "another `QUEUE`"},
	}
}

func (a app) discard(k kind) *cli.Command {
	return &cli.Command{
		Name: "discard", Usage: "throw " + k.one + "s away; asks first", ArgsUsage: "[QUEUE…]",
		Description:   map[bool]string{false: aboutQueues}[k.stranded] + k.about,
		ShellComplete: a.completeQueues,
		Flags: k.acting(dryRun(), yes(), &cli.StringFlag{
			Name: "export", Usage: "write them to `FILE` first, as the command export does; it is " +
				"appended to",
		}),
		Action: a.onChosen(k, func(ctx context.Context, l *letters) error {
			c := l.c
			do := func(o operate.MoveOptions) (operate.Progress, error) {
				if k.stranded {
					return l.operator.DiscardStranded(ctx, l.from(), o)
				}
				return l.operator.Discard(ctx, l.plan, o)
			}
			options := operate.MoveOptions{Filter: l.filter, Limit: l.limit}
			if !c.Bool("yes") && !c.Bool("dry-run") {
				if err := a.canAsk(); err != nil {
					return err
				}
				count := options
				count.DryRun = true
				p, err := do(count)
				if err == nil {
					err = a.ask(c, "nothing was thrown away", "Throw away %s of queue %q%s for good%s?",
						plural(p.Chosen, k.one), l.from(), l.amongQueues(), copyIn(c))
				}
				if err != nil {
					return err
				}
			}
			if name := c.String("export"); name != "" && !c.Bool("dry-run") {
				file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
				if err != nil {
					return err
				}
				defer func() { _ = file.Close() }() // synced after each batch
				options.KeepIn = file
			}
			return l.move(l.plan.Queue, "discard", k.one, options, do)
		}),
	}
}

// copyIn names the file of --export.
func copyIn(c *cli.Command) string {
	if name := c.String("export"); name != "" {
		return fmt.Sprintf(", with a copy in file %q", harmless(name))
	}
	return "; no copy is kept"
}

func yes() cli.Flag { return &cli.BoolFlag{Name: "yes", Usage: "do not ask"} }

func (a app) canAsk() error {
	if a.terminal(a.in) {
		return nil
	}
	return usage("there is no terminal to ask on: " +
		"pass --yes, or --dry-run to see how many there are")
}

// ask asks a question, unless --yes is given, and returns errRefused, with the consequence, unless
// the answer is yes.
func (a app) ask(c *cli.Command, otherwise, question string, args ...any) error {
	if c.Bool("yes") {
		return nil
	}
	if err := a.canAsk(); err != nil {
		return err
	}
	fmt.Fprintf(a.err, question+" [y/N] ", args...)
	answer, err := bufio.NewReader(a.in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return fmt.Errorf("%w: not confirmed, %s", errRefused, otherwise)
	}
	return nil
}

func (a app) export(k kind) *cli.Command {
	return &cli.Command{
		Name:  "export",
		Usage: "write " + k.one + "s as lines of JSON, lossless; they stay where they are",
		Flags: k.acting(&cli.StringFlag{
			Name: "file", Aliases: []string{"o"},
			Usage: "write to `FILE`, which must not exist; the standard output without it",
		}),
		ArgsUsage: "[QUEUE…]", Description: k.about, ShellComplete: a.completeQueues,
		Action: func(ctx context.Context, c *cli.Command) (err error) {
			out, total := a.out, 0
			if name := c.String("file"); name != "" {
				file, openErr := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
				if openErr != nil {
					return openErr
				}
				defer func() {
					if err = errors.Join(err, file.Sync(), file.Close()); err != nil && total == 0 {
						_ = os.Remove(name)
					}
				}()
				out = file
			}
			w := bufio.NewWriterSize(out, 64<<10)
			err = a.onChosen(k, func(ctx context.Context, l *letters) error {
				n, err := operate.Export(w, func(yield func(operate.Letter, error) bool) {
					for m, err := range l.all(ctx) {
						if !yield(m.Letter, err) {
							return
						}
					}
				})
				total += n
				return err
			})(ctx, c)
			err = errors.Join(err, w.Flush())
			if err == nil || total > 0 { // otherwise it is not known how many there are
				fmt.Fprintf(a.err, "exported %s\n", plural(total, k.one))
			}
			return err
		},
	}
}

func (a app) deadImport() *cli.Command {
	return &cli.Command{
		Name: "import", Usage: "publish exported messages to the dead-letter queue, each confirmed",
		ArgsUsage: "QUEUE",
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: "file", Aliases: []string{"i"}, Usage: "read `FILE`; the standard input without it",
			},
			&cli.StringFlag{Name: "to", Usage: "another `QUEUE` than the dead-letter queue"},
			&cli.IntFlag{
				Name: "skip", Usage: "pass over `N` lines: the lines that a failed import has confirmed",
			},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			queue, err := argument(c, oneQueue)
			if err != nil {
				return err
			}
			if c.Int("skip") < 0 {
				return usage("--skip %d is negative", c.Int("skip"))
			}
			return a.each(ctx, c, []string{queue}, func(s *session, plan topology.Plan) error {
				in := a.in
				if name := c.String("file"); name != "" {
					file, err := os.Open(name)
					if err != nil {
						return err
					}
					defer func() { _ = file.Close() }()
					in = file
				}
				lines := 0
				err := a.audited(c, plan.Queue, new(operate.Filter), func(e *auditlog.Entry) (err error) {
					lines, err = s.operator.Import(ctx, plan, in, operate.ImportOptions{
						To: c.String("to"), Skip: c.Int("skip"),
					})
					e.Count, e.Done = lines, lines
					return err
				})
				if c.Bool(flagJSON) {
					j := map[string]any{"lines": lines}
					if err != nil {
						j["error"] = err.Error()
					}
					return errors.Join(err, a.printJSON(j))
				}
				fmt.Fprintf(a.out, "%s confirmed\n", plural(lines, "line"))
				return err
			})
		},
	}
}

const (
	barWidth    = 30
	barInterval = 100 * time.Millisecond
)

// bar shows progress on a terminal, and nothing anywhere else.
type bar struct {
	app    app
	verb   string
	active bool
	began  time.Time
	shown  time.Time
	last   operate.Progress
}

func (a app) newBar(verb string) *bar {
	return &bar{app: a, verb: verb, active: a.terminal(a.err), began: time.Now()}
}

// show draws, but no more often than the eye can follow. One goroutine at a time calls it.
func (b *bar) show(p operate.Progress) {
	b.last = p
	if now := time.Now(); b.active && now.Sub(b.shown) >= barInterval {
		b.shown = now
		b.draw("")
	}
}

func (b *bar) draw(end string) {
	text := barText(b.verb, b.last, time.Since(b.began))
	fmt.Fprintf(b.app.err, "\r\x1b[K%s%s", text, end)
}

// barText is one line: how much, how fast, how long still.
func barText(verb string, p operate.Progress, took time.Duration) string {
	share := 0.0
	if p.Total > 0 {
		share = float64(p.Seen) / float64(p.Total)
	}
	full := int(share * barWidth)
	line := fmt.Sprintf("%s [%s%s] %3.0f%%  %d/%d seen, %d done, %.0f/s",
		verb, strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), share*100,
		p.Seen, p.Total, p.Done, float64(p.Done)/max(took.Seconds(), 0.001))
	if share > 0 && share < 1 {
		rest := time.Duration(float64(took) * (1 - share) / share)
		line += fmt.Sprintf(", %s left", rest.Round(time.Second))
	}
	return line
}

// end leaves the last state on the screen.
func (b *bar) end() {
	if b.active && (b.last.Total > 0 || !b.shown.IsZero()) {
		b.draw("\n")
	}
}
