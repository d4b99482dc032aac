package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

func (a app) waiting() *cli.Command {
	return &cli.Command{
		Name: "waiting", Usage: "messages that wait: list, release, cancel",
		Commands: []*cli.Command{
			a.waitingList(),
			a.takeOut("release", "to their queue, now", (*operate.Operator).Release),
			a.takeOut("cancel", "to the dead-letter queue", (*operate.Operator).Cancel),
		},
	}
}

// waiterJSON is a message that waits, as one line of a list.
type waiterJSON struct {
	operate.Waiter
	Delay string `json:"delay"`
	Count int    `json:"wait_queue_count"` // of messages in the wait queue
}

func (a app) waitingList() *cli.Command {
	return &cli.Command{
		Name: "list", Usage: "list messages that wait, by delay; with --json one object a line",
		ArgsUsage: "[QUEUE…]",
		Description: "A wait queue with more than 5000 messages is not touched.\n" +
			"In each line of JSON, wait_queue_count is the number of messages in its wait queue.",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "limit", Usage: "print at most `N` of each delay", Value: 20},
		},
		ShellComplete: a.completeQueues,
		Action: func(ctx context.Context, c *cli.Command) error {
			return a.opened(ctx, c, func(s *session) error {
				plans, gone, err := s.waitPlans(c.Args().Slice())
				if err != nil {
					return err
				}
				return s.each(ctx, plans, func(plan topology.Plan) error {
					isGone := slices.Contains(gone, plan.Queue)
					chosen := operate.Filter{Match: func(l operate.Letter) bool {
						all := plan.Queue == ""
						return all || l.Queue == plan.Queue || !isGone && waitsFor(l.Queue, plan.Queue)
					}}
					waiters, err := s.operator.Waiting(ctx, plan, chosen)
					switch {
					case len(waiters) > 0:
					case err != nil:
						return err // a queue was not looked at, so messages may wait
					case isGone:
						return s.unknownQueue(plan.Queue)
					}
					if s.vhost != nil && !c.Bool(flagJSON) {
						for _, g := range s.vhost.GoneOf(waiters) {
							fmt.Fprintln(s.out, s.colour(red, "waiting: "+harmless(g.String())))
						}
					}
					return errors.Join(err, a.printWaiting(c, waiters))
				})
			})
		},
	}
}

// waitPlans returns the plans of the named queues. Without a name, and for a queue that is gone, a
// plan has all wait queues.
func (s *session) waitPlans(queues []string) (plans []topology.Plan, gone []string, err error) {
	known := slices.DeleteFunc(distinct(queues), func(queue string) bool {
		_, there := s.found(queue)
		if s.vhost != nil && !there {
			gone = append(gone, queue)
		}
		return s.vhost != nil && !there
	})
	if len(known) > 0 || len(gone) == 0 {
		plans, err = s.plansOf(known)
	}
	if s.vhost != nil {
		all := s.vhost.Waits()
		if len(queues) == 0 {
			plans = []topology.Plan{all}
		}
		for _, all.Queue = range gone {
			plans = append(plans, all)
		}
	}
	return plans, gone, err
}

// waitsFor reports whether a message waits for a queue. Other queues may share the wait queue.
func waitsFor(own, queue string) bool { return own == "" || own == queue }

func (a app) printWaiting(c *cli.Command, waiters []operate.Waiter) error {
	of := map[string]int{}
	for _, w := range waiters {
		of[w.WaitQueue]++
	}
	limit, shown := c.Int("limit"), map[string]int{}
	rows := [][]string{{"delay", "id", "due", "failures", "class", "queue", "error"}}
	for _, w := range waiters {
		if shown[w.WaitQueue]++; limit > 0 && shown[w.WaitQueue] > limit {
			continue
		}
		if c.Bool(flagJSON) {
			if err := a.printLine(waiterJSON{w, w.Delay.String(), of[w.WaitQueue]}); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{
			w.Delay.String(), w.ID, when(w.Due), strconv.Itoa(w.Failures), orDash(string(w.Class)),
			orDash(w.Queue), orDash(w.Error),
		})
		if shown[w.WaitQueue] == limit && of[w.WaitQueue] > limit {
			rows = append(rows,
				[]string{w.Delay.String(), fmt.Sprintf("… and %d more", of[w.WaitQueue]-limit)})
		}
	}
	switch {
	case c.Bool(flagJSON):
		return nil
	case len(waiters) == 0:
		_, err := fmt.Fprintln(a.out, "nothing waits")
		return err
	}
	return a.table(rows)
}

func (a app) takeOut(name, where string, do func(
	*operate.Operator, context.Context, topology.Plan, operate.MoveOptions,
) (operate.Progress, error),
) *cli.Command {
	return &cli.Command{
		Name: name, Usage: "end the wait of chosen messages: " + where, ArgsUsage: "[QUEUE…]",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "id", Usage: "the message with this `ID`; may be repeated"},
			&cli.BoolFlag{Name: "all", Usage: "all that wait for this queue"},
		},
		ShellComplete: a.completeQueues,
		Action: func(ctx context.Context, c *cli.Command) error {
			if len(c.StringSlice("id")) == 0 && !c.Bool("all") {
				return usage("name the messages with --id, or pass --all")
			}
			return a.each(ctx, c, c.Args().Slice(), func(s *session, plan topology.Plan) error {
				options := operate.MoveOptions{Filter: operate.Filter{IDs: c.StringSlice("id")}}
				if c.Bool("all") {
					options.Filter.Match = func(l operate.Letter) bool { return waitsFor(l.Queue, plan.Queue) }
				}
				verb := map[string]string{"cancel": "cancell"}[name] // cancelled
				return s.move(plan.Queue, cmp.Or(verb, name), "waiting message", options,
					func(o operate.MoveOptions) (p operate.Progress, err error) {
						p, err = do(s.operator, ctx, plan, o)
						if err == nil && p.Chosen == 0 && c.Bool("all") {
							err = notFound("no message waits for queue %q", plan.Queue)
						}
						return p, err
					})
			})
		},
	}
}

func (a app) prune() *cli.Command {
	return &cli.Command{
		Name: "prune", Usage: "delete wait queues that no plan uses any more, if they are proven empty",
		ArgsUsage: "QUEUE",
		Description: "The plan of QUEUE (--policy) says which wait queues stay. " +
			"Name the queues to delete, or an older policy.\n" +
			"Needs --management: AMQP does not show messages that are unacked or held.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: flagOldPolicy, Usage: "the `DELAYS` of the policy before"},
			&cli.StringSliceFlag{Name: "queue", Usage: "`NAME` of a wait queue to delete; may be repeated"},
			&cli.BoolFlag{
				Name: "nobody-publishes", Usage: "your word that no running service uses these queues any " +
					"more; nothing can prove it",
			},
			&cli.DurationFlag{Name: "wait", Usage: "wait so long for messages that are still in them"},
			dryRun(),
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			queue, err := argument(c, oneQueue)
			if err != nil {
				return err
			}
			if c.String(flagPolicy) == "" {
				return usage("--policy says which wait queues stay: name the delays of today")
			}
			plan, err := a.planOf(c, queue, flagPolicy)
			if err != nil {
				return err
			}
			names := c.StringSlice("queue")
			if c.String(flagOldPolicy) != "" {
				before, err := a.planOf(c, queue, flagOldPolicy)
				if err != nil {
					return err
				}
				names = append(names, unusedWaits(before, plan)...)
			}
			if len(names) == 0 {
				return usage("name the queues to delete with --queue, or the policy before with --old-policy")
			}
			return a.opened(ctx, c, func(s *session) error {
				var results []operate.Pruned
				err := a.audited(c, queue, new(operate.Filter), func(*auditlog.Entry) (err error) {
					results, err = s.operator.Prune(ctx, []topology.Plan{plan}, operate.PruneOptions{
						Queues: names, NobodyPublishes: c.Bool("nobody-publishes"),
						DryRun: c.Bool("dry-run"), Wait: c.Duration("wait"),
					})
					return err
				})
				return errors.Join(err, a.printPruned(c, results))
			})
		},
	}
}

// unusedWaits returns the wait queues of an older plan that today's plan does not use.
func unusedWaits(before, today topology.Plan) (names []string) {
	for _, q := range before.Queues {
		used := slices.ContainsFunc(today.Queues, func(now topology.Queue) bool {
			return now.Name == q.Name
		})
		if q.Delay > 0 && !used {
			names = append(names, q.Name)
		}
	}
	return names
}

func (a app) printPruned(c *cli.Command, results []operate.Pruned) error {
	if c.Bool(flagJSON) {
		return a.printSnakeJSON(orEmpty(results))
	}
	rows := [][]string{{"queue", "outcome"}}
	for _, r := range results {
		outcome := "stays: " + r.Why
		switch {
		case r.Deleted && c.Bool("dry-run"):
			outcome = "would be deleted"
		case r.Deleted:
			outcome = "deleted"
		}
		rows = append(rows, []string{r.Queue, outcome})
	}
	return a.table(rows)
}
