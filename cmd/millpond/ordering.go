package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
	"github.com/millpond-go/millpond/topology/operate"
)

const inOrderStrategy = "inorder"

func inOrderOf(w waits) (topology.Strategy, error) {
	return inorder.Strategy{
		Else: topology.PerQueue{Type: w.kind, Prefix: w.prefix, Dead: w.dead},
	}, nil
}

func (a app) order() *cli.Command {
	return &cli.Command{
		Name: "order", Usage: "queues that are handled in order, by key: list the keys that wait, " +
			"release a blocked key, replay its dead letters in their order",
		Commands: []*cli.Command{a.orderList(), a.orderRelease(), a.orderReplay()},
	}
}

// orderJSON is the line of a queue.
type orderJSON struct {
	Queue string `json:"queue"`
	operate.OrderState
}

func (a app) orderList() *cli.Command {
	return &cli.Command{
		Name: "list", Usage: "list the keys with messages that wait, blocked ones first: since when, " +
			"by which dead letter",
		ArgsUsage: "[QUEUE…]", ShellComplete: a.completeQueues,
		Description: "The process that leads answers. Without one the line is read, and its messages " +
			"go back in\ntheir order.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "blocked", Usage: "only keys that a dead letter blocks"},
			&cli.IntFlag{Name: "limit", Usage: "print at most `N` keys of each queue", Value: 20},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			lines := []orderJSON{}
			err := a.onOrdered(ctx, c, c.Args().Slice(), func(s *session, plan topology.Plan) error {
				state, err := s.operator.Order(ctx, plan)
				if err != nil {
					return err
				}
				if c.Bool("blocked") {
					state.Keys = orEmpty(state.BlockedKeys())
				}
				if c.Bool(flagJSON) {
					lines = append(lines, orderJSON{plan.Queue, state})
					return nil
				}
				return a.printOrder(c, plan, state)
			})
			if c.Bool(flagJSON) {
				err = errors.Join(err, a.printJSON(lines))
			}
			return err
		},
	}
}

// onOrdered is each for the queues that are handled in order.
func (a app) onOrdered(
	ctx context.Context, c *cli.Command, queues []string, f func(*session, topology.Plan) error,
) error {
	return a.opened(ctx, c, func(s *session) error {
		plans, err := s.plansOf(queues)
		if err != nil {
			return err
		}
		var errs []error
		for _, plan := range plans {
			switch {
			case plan.Line == "" && len(queues) > 0 && s.vhost == nil:
				errs = append(errs, usage("without the management API the flags say how messages wait: "+
					"pass --%s %s for queue %q", flagStrategy, inOrderStrategy, plan.Queue))
			case plan.Line == "" && len(queues) > 0:
				errs = append(errs, usage("queue %q is not handled in order: it has no line", plan.Queue))
			case plan.Line != "":
				errs = append(errs, f(s, plan))
			}
		}
		if len(errs) == 0 && !c.Bool(flagJSON) {
			fmt.Fprintf(a.out, "virtual host %q: no queue is handled in order\n", s.vhost.Vhost)
		}
		return errors.Join(errs...)
	})
}

func (a app) printOrder(c *cli.Command, plan topology.Plan, state operate.OrderState) error {
	led := "no process leads"
	if state.Instance != "" {
		led = fmt.Sprintf("%s leads since %s, epoch %d", state.Instance, when(state.Since), state.Epoch)
	}
	most := ""
	if state.MaxMessages > 0 {
		most = fmt.Sprintf(" of at most %d", state.MaxMessages)
	}
	fmt.Fprintf(a.out, "%s: %s; %d%s in the line, %d kB\n", harmless(plan.Queue), harmless(led),
		state.Messages, most, (state.Bytes+1023)>>10)
	if state.NearBound() {
		fmt.Fprintln(a.out, a.colour(yellow, "the line is near its bound: beyond it the queue pauses, "+
			"and messages without order and of other keys wait, too"))
	}
	if len(state.Keys) == 0 {
		none := "no key waits"
		if c.Bool("blocked") {
			none = "no key is blocked"
		}
		_, err := fmt.Fprintln(a.out, none)
		return err
	}
	rows := [][]string{{"key", "state", "waiting", "dead letter", "mark"}}
	limit := c.Int("limit")
	for i, k := range state.Keys {
		if limit > 0 && i == limit {
			rows = append(rows, []string{
				fmt.Sprintf("… and %d more", len(state.Keys)-limit+state.Others),
			})
			break
		}
		rows = append(rows, orderRow(k))
	}
	return a.table(rows)
}

func orderRow(k operate.OrderKey) []string {
	now := "goes on"
	switch {
	case k.Replayed:
		now = "blocked since " + when(k.Blocked) + ", replay interrupted"
	case k.Mark != "":
		now = "blocked since " + when(k.Blocked)
	case !k.Due.IsZero():
		now = "due " + when(k.Due)
	}
	return []string{
		orDash(k.Key), now, strconv.Itoa(k.Waiting), orDash(k.MessageID), orDash(k.Mark),
	}
}

// keyFlags are the flags of a command that takes a key.
func keyFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "mark", Usage: "the `MARK` of a blocked key, as order list prints it, in " +
			"place of KEY: for a key that is hard to type"},
		dryRun(),
	}
}

// onKey calls f with the queue and the state of the key that the arguments name.
func (a app) onKey(
	ctx context.Context, c *cli.Command,
	f func(s *session, plan topology.Plan, k operate.OrderKey) error,
) error {
	mark, n := c.String("mark"), 2
	if mark != "" {
		n = 1
	}
	if c.NArg() != n {
		return usage("%s takes a queue and a key, or a queue and --mark, not %d arguments", c.FullName(),
			c.NArg())
	}
	key := c.Args().Get(1)
	if mark == "" && key == "" {
		return usage("the key is empty: messages without a key have no order")
	}
	return a.onOrdered(ctx, c, c.Args().Slice()[:1], func(s *session, plan topology.Plan) error {
		found, err := s.operator.FindKey(ctx, plan, key, mark)
		if err != nil {
			return err
		}
		if mark != "" && found.Mark == "" {
			return notFound("no dead letter with the mark %q blocks a key: millpond order list %s has "+
				"the keys", mark, audit.ShellWord(plan.Queue))
		}
		return f(s, plan, found)
	})
}

func (a app) orderRelease() *cli.Command {
	return &cli.Command{
		Name: "release", Usage: "let a blocked key go on without its dead letter; asks first",
		ArgsUsage: "QUEUE KEY", ShellComplete: a.completeQueues,
		Description: "The dead letter stays in the dead-letter queue, and the later messages of the " +
			"key are handled\nwithout it. To have it handled before them: order replay.",
		Flags: append(keyFlags(), yes()),
		Action: func(ctx context.Context, c *cli.Command) error {
			return a.onKey(ctx, c, func(
				s *session, plan topology.Plan, k operate.OrderKey,
			) error {
				if k.Mark == "" {
					return notBlocked(plan, k)
				}
				if c.Bool("dry-run") {
					return a.released(c, plan, k, "would have released")
				}
				err := a.ask(c, "nothing was released", "Let key %s of queue %s go on without dead letter "+
					"%s? %s.", oneLine(k.Key), harmless(plan.Queue), oneLine(k.MessageID),
					messagesWait(k.Waiting))
				if err == nil {
					err = a.audited(c, plan.Queue, new(operate.Filter), func(e *auditlog.Entry) error {
						return s.operator.ReleaseKey(ctx, plan, k.Key, k.Mark)
					})
				}
				switch {
				case errors.Is(err, operate.ErrNotBlocked):
					return notBlocked(plan, k)
				case err != nil:
					return err
				}
				return a.released(c, plan, k, "released")
			})
		},
	}
}

func notBlocked(plan topology.Plan, k operate.OrderKey) error {
	return notFound("key %q of queue %q is not blocked", k.Key, plan.Queue)
}

func (a app) released(
	c *cli.Command, plan topology.Plan, k operate.OrderKey, verb string,
) error {
	if c.Bool(flagJSON) {
		return a.printJSON(map[string]any{
			"queue": plan.Queue, "released": !c.Bool("dry-run"), "was": k,
		})
	}
	_, err := fmt.Fprintf(a.out, "%s key %s: %s; dead letter %s stays in %s\n", verb, oneLine(k.Key),
		messagesWait(k.Waiting), oneLine(k.MessageID), harmless(plan.Dead.RoutingKey))
	return err
}

// messagesWait says how many messages of a key wait.
func messagesWait(n int) string {
	if n == 1 {
		return "1 message waits"
	}
	return fmt.Sprintf("%d messages wait", n)
}

func (a app) orderReplay() *cli.Command {
	return &cli.Command{
		Name: "replay", Usage: "move the dead letters of a key back, in their order",
		ArgsUsage: "QUEUE KEY", ShellComplete: a.completeQueues,
		Description: "A dead letter that blocks the key is handled before the messages that wait, and " +
			"then the key\ngoes on. Letters whose key went on come behind all messages of the key. Each " +
			"is confirmed before\nit leaves the dead-letter queue. An interrupted replay is ended by the " +
			"next one.",
		Flags: append(keyFlags(),
			&cli.StringSliceFlag{Name: "id", Usage: "the letter with this `ID`; may be repeated"}),
		Action: func(ctx context.Context, c *cli.Command) error {
			return a.onKey(ctx, c, func(
				s *session, plan topology.Plan, k operate.OrderKey,
			) error {
				options := operate.MoveOptions{Filter: operate.Filter{IDs: c.StringSlice("id")}}
				return s.move(plan.Queue, "replay", deadLetter, options,
					func(o operate.MoveOptions) (operate.Progress, error) {
						p, err := s.operator.ReplayKey(ctx, plan, k.Key, o)
						switch {
						case err == nil && p.Chosen == 0 && !k.Replayed:
							err = notFound("queue %s has no dead letter of key %q that is meant",
								plan.Dead.RoutingKey, k.Key)
						case err == nil && p.Chosen == 0:
							fmt.Fprintf(a.told(c), "the letter of an interrupted replay is in the line: key %s "+
								"is released\n", oneLine(k.Key))
						}
						return p, err
					})
			})
		},
	}
}
