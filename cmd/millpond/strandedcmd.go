package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

func (a app) stranded() *cli.Command {
	return &cli.Command{
		Name: "stranded", Usage: "messages that found no way to their queue when their wait was over: " +
			"list, show, return, export, discard",
		Commands: []*cli.Command{
			a.strandedList(), a.strandedShow(), a.strandedReturn(), a.export(a.strandedMessages()),
			a.discard(a.strandedMessages()),
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

func (a app) strandedMessages() kind {
	return kind{
		one: strandedMessage, about: aboutStranded, stranded: true, on: a.onStrays,
		flags: conditions("message", "stranded", "id", "error", "since", "until", "header", "limit"),
	}
}

// onStrays makes the action of a command that takes queues and the flags of strandedMessages.
func (a app) onStrays(act act) cli.ActionFunc {
	return func(ctx context.Context, c *cli.Command) error {
		filter, limit, err := filterOf(c, time.Now())
		if err != nil {
			return err
		}
		if slices.ContainsFunc(filter.IDs, position.MatchString) {
			return usage("--id takes the ID of a message: stranded messages have no positions")
		}
		filter.Queues = c.Args().Slice()
		return a.withStrays(ctx, c, filter, limit, act)
	}
}

// withStrays calls act for each stranded queue.
func (a app) withStrays(
	ctx context.Context, c *cli.Command, filter operate.Filter, limit int, act act,
) error {
	return a.opened(ctx, c, func(s *session) error {
		queues, err := s.strandedQueues()
		if err != nil {
			return err
		}
		plans := make([]topology.Plan, len(queues))
		for i, queue := range queues {
			plans[i].Queue, plans[i].Dead.RoutingKey = queue, queue
		}
		return s.each(ctx, plans, func(plan topology.Plan) error {
			return act(ctx, &letters{s, a.strandedMessages(), plan, filter, limit})
		})
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
	found := namesOf(s.vhost.Stranded, queueName)
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

func (a app) strandedList() *cli.Command {
	return &cli.Command{
		Name: "list", Usage: "list stranded messages, oldest first, with their queue, the time and the " +
			"cause; with --json one object a line",
		ArgsUsage: "[QUEUE…]", Description: aboutStranded, Flags: a.strandedMessages().flags,
		Action: a.onStrays(func(ctx context.Context, l *letters) error {
			return l.list(ctx, "%-36s  %-20s  %-20s  %8s  %-12s  %s\n",
				[]any{"id", "for queue", "since", "failures", "cause", "why"},
				fmt.Sprintf("no such messages in queue %q\n", l.from()),
				func(m operate.StrandedMessage) []any {
					return []any{
						oneLine(m.ID), orDash(oneLine(m.Queue)), when(m.DeadAt),
						strconv.Itoa(m.Attempts), string(m.Cause), harmless(m.Why),
					}
				})
		}),
	}
}

func (a app) strandedShow() *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "show everything of a stranded message", ArgsUsage: "ID",
		Description: "The message is in the queue millpond.stranded, or PREFIX.stranded with --prefix.",
		Flags:       []cli.Flag{fullPayload()},
		Action: func(ctx context.Context, c *cli.Command) error {
			id, err := argument(c, "the ID of one message")
			if err != nil {
				return err
			}
			one := operate.Filter{IDs: []string{id}}
			return a.withStrays(ctx, c, one, 0, func(ctx context.Context, l *letters) error {
				found, err := l.showAll(ctx)
				if err == nil && found == 0 {
					err = notFound("there is no message %q in queue %q", id, l.from())
				}
				return err
			})
		},
	}
}

func (a app) strandedReturn() *cli.Command {
	k := a.strandedMessages()
	return &cli.Command{
		Name: "return", Usage: "move stranded messages to their queues, each confirmed there before it " +
			"leaves the stranded queue; their attempts go on",
		ArgsUsage: "[QUEUE…]", Description: k.about,
		Flags: k.acting(append(goingFlags(), dryRun())...),
		Action: func(ctx context.Context, c *cli.Command) error {
			rate, err := overview.Rate(c.String("rate"))
			if err != nil {
				return usage("--rate %v", err)
			}
			return a.onChosen(k, func(ctx context.Context, l *letters) error {
				options := operate.MoveOptions{
					Filter: l.filter, Limit: l.limit, Rate: rate, To: c.String("to"),
				}
				return l.move(l.from(), "return", k.one, options,
					func(o operate.MoveOptions) (operate.Progress, error) {
						return l.operator.ReturnStranded(ctx, l.from(), o)
					})
			})(ctx, c)
		},
	}
}
