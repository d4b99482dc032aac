package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

func (a app) plan() *cli.Command {
	return &cli.Command{
		Name: "plan", Usage: "print the plan of a queue: all that it declares; asks no broker",
		ArgsUsage: "QUEUE",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "definitions", Usage: "as a RabbitMQ definitions file"},
			&cli.StringFlag{Name: "vhost", Usage: "of the definitions", Value: "/"},
			&cli.BoolFlag{
				Name: "permissions", Usage: "the permission patterns of a user who consumes, retries " +
					"and declares",
			},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			queue, err := queueOf(c)
			if err != nil {
				return err
			}
			plan, err := a.planOf(c, queue)
			if err != nil {
				return err
			}
			switch {
			case c.Bool("definitions"):
				own := topology.Queue{Name: queue}
				if len(plan.Bindings) == 0 {
					return a.definitions(plan.Definitions(c.String("vhost")))
				}
				return a.definitions(plan.Definitions(c.String("vhost"), own))
			case c.Bool("permissions"):
				return a.permissions(c, plan.Permissions(!c.Bool(flagProvisioned)))
			case c.Bool(flagJSON):
				return a.printSnakeJSON(plan)
			}
			_, err = fmt.Fprint(a.out, plan)
			return err
		},
	}
}

func (a app) definitions(file []byte, err error) error {
	if err != nil {
		return usage("%v", err)
	}
	_, err = fmt.Fprintf(a.out, "%s\n", file)
	return err
}

func (a app) permissions(c *cli.Command, p topology.Permissions) error {
	if c.Bool(flagJSON) {
		return a.printSnakeJSON(p)
	}
	return a.columns([][]string{
		{"right", "pattern"}, {"configure", p.Configure}, {"write", p.Write}, {"read", p.Read},
	}, harmless) // whole, because people copy the patterns
}

func (a app) declare() *cli.Command {
	return &cli.Command{
		Name: "declare", Usage: "declare the plan of a queue; changes nothing that exists",
		ArgsUsage: "QUEUE",
		Action: func(ctx context.Context, c *cli.Command) error {
			queue, err := queueOf(c)
			if err != nil {
				return err
			}
			return a.with(ctx, c, queue, func(o *operate.Operator, plan topology.Plan) error {
				if err := o.Declare(ctx, plan); err != nil {
					return err
				}
				if c.Bool(flagJSON) {
					return a.printSnakeJSON(plan)
				}
				_, err := fmt.Fprintf(a.out, "declared %s for queue %q\n",
					plural(len(plan.Queues), "queue"), queue)
				return err
			})
		},
	}
}

func (a app) verify() *cli.Command {
	return &cli.Command{
		Name: "verify", Usage: "compare the plan of a queue with the broker; " +
			"exits 1 if something critical is found",
		ArgsUsage: "QUEUE",
		Description: "Without --management no policy, binding or feature flag is looked at, and verify " +
			"says so.\nIn a pipeline use --management and --strict: " +
			"then it exits 1 also where it could not look at everything.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "strict", Usage: "exit 1 also if something could not be looked at"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			queue, err := queueOf(c)
			if err != nil {
				return err
			}
			return a.with(ctx, c, queue, func(o *operate.Operator, plan topology.Plan) error {
				findings, err := findingsOf(ctx, o, plan, a.assumes(c))
				if err != nil {
					return err
				}
				if c.Bool(flagJSON) {
					err = a.printSnakeJSON(orEmpty(findings))
				} else {
					a.printFindings(findings, "nothing found")
				}
				for _, f := range findings {
					if f.Severity == operate.Critical || f.Problem == operate.Unchecked && c.Bool("strict") {
						return errFound
					}
				}
				return err
			})
		},
	}
}

// findingsOf verifies a plan. Where its wait queues are a guess, a missing one is not critical.
func findingsOf(
	ctx context.Context, o *operate.Operator, plan topology.Plan, guess bool,
) ([]operate.Finding, error) {
	findings, err := o.Verify(ctx, plan)
	if guess {
		soften(plan, findings)
	}
	return findings, err
}

// soften makes warnings of missing wait queues.
func soften(plan topology.Plan, findings []operate.Finding) {
	for i, f := range findings {
		wait := slices.ContainsFunc(plan.Queues, func(q topology.Queue) bool {
			return q.Name == f.Name && q.Delay > 0
		})
		if wait && f.Kind == "queue" && f.Problem == operate.Missing {
			findings[i].Severity = operate.Warning
			findings[i].Text = "does not exist or cannot be reached: without --policy the tool does not " +
				"know whether the service uses it"
		}
	}
	slices.SortStableFunc(findings, func(a, b operate.Finding) int {
		return strings.Compare(string(a.Severity), string(b.Severity)) // critical before warning
	})
}

func (a app) printFindings(findings []operate.Finding, none string) {
	if len(findings) == 0 && none != "" {
		fmt.Fprintln(a.out, a.colour(green, none))
	}
	for _, f := range findings {
		code := yellow
		if f.Severity == operate.Critical {
			code = red
		}
		fmt.Fprintln(a.out, a.colour(code, f.String()))
	}
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// statusJSON is the status of a queue.
type statusJSON struct {
	Queue           string
	Queues          []operate.QueueReport
	Findings        []operate.Finding
	ManagementError string `json:",omitempty"`
}

func (a app) status() *cli.Command {
	return &cli.Command{
		Name: "status", Usage: "count messages that are ready, wait and are dead, and print the " +
			"findings of verify",
		ArgsUsage: "QUEUE…",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "watch", Usage: "again and again"},
			&cli.DurationFlag{Name: "interval", Usage: "of --watch", Value: 2 * time.Second},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.NArg() == 0 {
				return usage("%s takes the names of queues: AMQP cannot list them", c.FullName())
			}
			plans := make([]topology.Plan, c.NArg())
			for i, queue := range c.Args().Slice() {
				var err error
				if plans[i], err = a.planOf(c, queue); err != nil {
					return err
				}
			}
			o, err := a.open(ctx, c)
			if err != nil {
				return err
			}
			defer func() { _ = o.Close() }()
			guess := a.assumes(c)
			for {
				if c.Bool("watch") && a.terminal(a.out) {
					fmt.Fprint(a.out, "\x1b[H\x1b[2J")
				}
				if err := a.statusOnce(ctx, c, o, plans, guess); err != nil || !c.Bool("watch") {
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

func (a app) statusOnce(
	ctx context.Context, c *cli.Command, o *operate.Operator, plans []topology.Plan, guess bool,
) error {
	all := []statusJSON{}
	said := map[operate.Finding]bool{} // about the broker: the same for each queue
	for _, plan := range plans {
		report, err := o.Inspect(ctx, plan)
		if err != nil {
			return err
		}
		findings, err := findingsOf(ctx, o, plan, guess)
		if err != nil {
			return err
		}
		s := statusJSON{Queue: report.Queue, Queues: report.Queues, Findings: orEmpty(findings)}
		if report.ManagementErr != nil {
			s.ManagementError = report.ManagementErr.Error()
		}
		all = append(all, s)
		if !c.Bool(flagJSON) {
			fmt.Fprint(a.out, report)
			news := slices.DeleteFunc(slices.Clone(findings), func(f operate.Finding) bool {
				return said[f]
			})
			a.printFindings(news, "")
			for _, f := range s.Findings {
				said[f] = f.Kind == "broker"
			}
		}
	}
	if c.Bool(flagJSON) {
		return a.printSnakeJSON(all)
	}
	return nil
}
