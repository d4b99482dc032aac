package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/topology/operate"
)

func (a app) stranded() *cli.Command {
	return &cli.Command{
		Name: "stranded", Usage: "messages that found no way to their queue when their wait was over: " +
			"list, show, return, export, discard",
		Commands: []*cli.Command{
			a.strandedList(), a.strandedShow(), a.strandedReturn(), a.strandedExport(),
			a.strandedDiscard(),
		},
	}
}

const aboutStranded = `The queues whose messages to take; all without one. All stranded queues are
looked at, with --prefix PREFIX.stranded alone. Without the management API that is
millpond.stranded, and a missing binding cannot be told.`

// strandedQueue is the queue of --prefix. Services with the same prefix share it.
func strandedQueue(c *cli.Command) string {
	return cmp.Or(c.String(flagPrefix), "millpond") + ".stranded"
}

// strays are the stranded messages that a command works on.
type strays struct {
	operator *operate.Operator
	queue    string
	filter   operate.Filter
	limit    int
	several  bool // other stranded queues are looked at, too
}

// strayFlags choose stranded messages.
func strayFlags(more ...cli.Flag) []cli.Flag {
	return append(
		conditions("message", "stranded", "id", "error", "since", "until", "header", "limit"), more...)
}

// allStrays lets a command that moves messages take all of them.
func allStrays() cli.Flag {
	return &cli.BoolFlag{Name: "all", Usage: "all messages of the stranded queue"}
}

// onStrays makes the action of a command that takes queues and the flags of strayFlags.
func (a app) onStrays(act func(context.Context, *cli.Command, *strays) error) cli.ActionFunc {
	return func(ctx context.Context, c *cli.Command) (err error) {
		s := &strays{queue: strandedQueue(c)}
		if s.filter, s.limit, err = filterOf(c, time.Now()); err != nil {
			return err
		}
		if slices.ContainsFunc(s.filter.IDs, position.MatchString) {
			return usage("--id takes the ID of a message: stranded messages have no positions")
		}
		queues := c.Args().Slice()
		if len(queues) > 0 {
			s.filter.Match = func(l operate.Letter) bool { return slices.Contains(queues, l.Queue) }
		}
		return a.withStrays(ctx, c, s, func() error { return act(ctx, c, s) })
	}
}

// withStrays calls act for each stranded queue.
func (a app) withStrays(
	ctx context.Context, c *cli.Command, s *strays, act func() error,
) error {
	return a.opened(ctx, c, func(now *session) error {
		queues, err := now.strandedQueues()
		if err != nil {
			return err
		}
		s.operator, s.several = now.operator, len(queues) > 1
		var errs []error
		for _, s.queue = range queues {
			if s.several && !c.Bool(flagJSON) {
				fmt.Fprintf(a.told(c), "%s:\n", harmless(s.queue))
			}
			errs = append(errs, act())
		}
		return worst(errs)
	})
}

// strandedQueues returns the queue of --prefix, or all that were found without it.
func (s *session) strandedQueues() ([]string, error) {
	one := strandedQueue(s.c)
	if s.vhost == nil {
		if !s.c.Bool(flagNoManagement) {
			fmt.Fprintf(s.err, "millpond: the management API cannot be asked: %v\n", s.blind)
		}
		fmt.Fprintf(s.err, "millpond: without the management API --prefix says which queue keeps "+
			"stranded messages: %s\n", one)
		return []string{one}, nil
	}
	var found []string
	for _, q := range s.vhost.Stranded {
		found = append(found, q.Name)
	}
	for _, o := range s.vhost.Orphans {
		if o.Total.N != 0 {
			fmt.Fprintf(s.err, "millpond: %s in wait queue %s, which leads to no queue: %s\n",
				messages(o.Total), harmless(o.Name), harmless(o.Why))
		}
	}
	switch {
	case s.c.IsSet(flagPrefix) && !slices.Contains(found, one):
		return nil, usage("--prefix %s: virtual host %q has no queue %q; its stranded queues: %s",
			s.c.String(flagPrefix), s.vhost.Vhost, one, cmp.Or(harmless(strings.Join(found, ", ")), "none"))
	case s.c.IsSet(flagPrefix):
		return []string{one}, nil
	case len(found) == 0:
		fmt.Fprintf(s.told(s.c), "virtual host %q: no stranded queue was found\n", s.vhost.Vhost)
		s.notKnown(s.told(s.c))
		return nil, nil
	}
	return found, nil
}

// onChosenStrays is onStrays for a command that moves messages: it needs a filter, or --all.
func (a app) onChosenStrays(act func(context.Context, *cli.Command, *strays) error) cli.ActionFunc {
	return func(ctx context.Context, c *cli.Command) error {
		chosen := c.NArg() > 0
		for _, name := range flagNames(strayFlags(allStrays())) {
			chosen = chosen || name != "limit" && c.IsSet(name)
		}
		if !chosen {
			return usage("%s: name the queues of the messages, filter them, or pass --all", c.FullName())
		}
		return a.onStrays(act)(ctx, c)
	}
}

func (a app) strandedList() *cli.Command {
	return &cli.Command{
		Name: "list", Usage: "list stranded messages, oldest first, with their queue, the time and the " +
			"cause; with --json one object a line",
		ArgsUsage: "[QUEUE…]", Description: aboutStranded, Flags: strayFlags(),
		Action: a.onStrays(func(ctx context.Context, c *cli.Command, s *strays) error {
			const columns = "%-36s  %-20s  %-20s  %8s  %-12s  %s\n"
			n := 0
			for m, err := range s.operator.Stranded(ctx, s.queue, s.filter, s.limit) {
				if err != nil {
					return err
				}
				if n++; c.Bool(flagJSON) {
					m.History = nil
					if err := a.printLine(m); err != nil {
						return err
					}
					continue
				}
				if n == 1 {
					fmt.Fprintf(a.out, columns, "id", "for queue", "since", "failures", "cause", "why")
				}
				_, err = fmt.Fprintf(a.out, columns, oneLine(m.ID), orUnknown(oneLine(m.Queue)),
					orUnknown(since(m.DeadAt)), strconv.Itoa(m.Attempts), string(m.Cause), harmless(m.Why))
				if err != nil {
					return err
				}
			}
			if n == 0 && !c.Bool(flagJSON) {
				_, err := fmt.Fprintf(a.out, "no such messages in queue %q\n", s.queue)
				return err
			}
			return nil
		}),
	}
}

// orUnknown is text, or says that it is not known.
func orUnknown(text string) string { return cmp.Or(text, "unknown") }

func since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return when(t)
}

func (a app) strandedShow() *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "show everything of a stranded message", ArgsUsage: "ID",
		Description: "The message is in the queue millpond.stranded, or PREFIX.stranded with --prefix.",
		Flags:       []cli.Flag{fullPayload()},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.NArg() != 1 {
				return usage("%s takes the ID of one message", c.FullName())
			}
			id := c.Args().First()
			s := &strays{queue: strandedQueue(c), filter: operate.Filter{IDs: []string{id}}}
			return a.withStrays(ctx, c, s, func() error {
				found := 0
				for m, err := range s.operator.Stranded(ctx, s.queue, s.filter, 0) {
					if err == nil {
						err = a.show(c, found, m)
					}
					if err != nil {
						return err
					}
					found++
				}
				if found == 0 {
					return notFound("there is no message %q in queue %q", id, s.queue)
				}
				return nil
			})
		},
	}
}

func (a app) strandedReturn() *cli.Command {
	return &cli.Command{
		Name: "return", Usage: "move stranded messages to their queues, each confirmed there before it " +
			"leaves the stranded queue; their attempts go on",
		ArgsUsage: "[QUEUE…]", Description: aboutStranded,
		Flags: strayFlags(allStrays(), dryRun(), &cli.StringFlag{
			Name: "rate", Usage: "how many, as in 50/s, 600/m or 50; as fast as possible without it",
		}, &cli.StringFlag{Name: "to", Usage: "another `QUEUE`"}),
		Action: func(ctx context.Context, c *cli.Command) error {
			rate, err := rateOf(c.String("rate"))
			if err != nil {
				return err
			}
			return a.onChosenStrays(func(ctx context.Context, c *cli.Command, s *strays) error {
				bar := a.newBar("returning")
				r, err := s.operator.ReturnStranded(ctx, s.queue, operate.ReplayOptions{
					Filter: s.filter, Limit: s.limit, Rate: rate, To: c.String("to"),
					DryRun: c.Bool("dry-run"), Progress: bar.show,
				})
				bar.end()
				return a.report(c, "", "returned", strandedMessage, r, err)
			})(ctx, c)
		},
	}
}

func (a app) strandedExport() *cli.Command {
	return &cli.Command{
		Name:      "export",
		Usage:     "write stranded messages as dead export does; they stay where they are",
		ArgsUsage: "[QUEUE…]", Description: aboutStranded, Flags: strayFlags(exportFile()),
		Action: func(ctx context.Context, c *cli.Command) error {
			return a.export(c, "stranded message", func(w io.Writer) (total int, err error) {
				err = a.onStrays(func(ctx context.Context, _ *cli.Command, s *strays) error {
					n, err := s.operator.ExportStranded(ctx, s.queue, s.filter, s.limit, w)
					total += n
					return err
				})(ctx, c)
				return total, err
			})
		},
	}
}

func (a app) strandedDiscard() *cli.Command {
	return &cli.Command{
		Name: "discard", Usage: "throw stranded messages away; asks first", ArgsUsage: "[QUEUE…]",
		Description: aboutStranded,
		Flags: strayFlags(allStrays(), dryRun(), &cli.BoolFlag{Name: "yes", Usage: "do not ask"},
			&cli.StringFlag{
				Name: "export", Usage: "write them to `FILE` first, as stranded export does; it is " +
					"appended to",
			}),
		Action: a.onChosenStrays(func(ctx context.Context, c *cli.Command, s *strays) error {
			options := operate.DiscardOptions{Filter: s.filter, Limit: s.limit}
			return a.discard(c, "", strandedMessage, s.queue, options,
				func(o operate.DiscardOptions) (operate.Progress, error) {
					return s.operator.DiscardStranded(ctx, s.queue, o)
				})
		}),
	}
}
