package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/internal/excerpt"
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
			queue, err := argument(c, oneQueue)
			if err != nil {
				return err
			}
			plan, err := a.planOf(c, queue, flagPolicy)
			if err != nil {
				return err
			}
			switch {
			case c.Bool("definitions"):
				var own []topology.Queue // which the bindings need
				if len(plan.Bindings) > 0 {
					own = append(own, topology.Queue{Name: queue})
				}
				file, err := plan.Definitions(c.String("vhost"), own...)
				if err != nil {
					return usage("%v", err)
				}
				_, err = fmt.Fprintln(a.out, excerpt.JSON(string(file)))
				return err
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
			queue, err := argument(c, oneQueue)
			if err != nil {
				return err
			}
			return a.planned(ctx, c, queue, func(s *session, plan topology.Plan) error {
				err := a.audited(c, queue, new(operate.Filter), func(*auditlog.Entry) error {
					return s.operator.Declare(ctx, plan)
				})
				if err != nil {
					return err
				}
				if c.Bool(flagJSON) {
					return a.printSnakeJSON(plan)
				}
				_, err = fmt.Fprintf(a.out, "declared %s for queue %q\n",
					plural(len(plan.Queues), "queue"), queue)
				return err
			})
		},
	}
}

func (a app) verify() *cli.Command {
	return &cli.Command{
		Name: "verify", Usage: "look for problems of queues and of the broker; " +
			"exits 1 if something critical is found",
		ArgsUsage: "[QUEUE…]",
		Description: "With --policy verify compares the plan of that policy with the broker. " +
			"Without it, verify looks at\nthe queues that it finds, and cannot know whether one is " +
			"missing.\n" +
			"Without the management API no policy, binding or feature flag is looked at, and verify says " +
			"so.\nIn a pipeline use --policy and --strict: " +
			"then it exits 1 also where it could not look at everything.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "strict", Usage: "exit 1 also if something could not be looked at"},
		},
		ShellComplete: a.completeQueues,
		Action: func(ctx context.Context, c *cli.Command) error {
			all, bad := []operate.Finding{}, false
			err := a.eachPlan(ctx, c, func(s *session, plan topology.Plan) error {
				report, err := s.verify(ctx, plan)
				if err != nil {
					return err
				}
				for _, f := range report.Findings {
					bad = bad || f.Severity == operate.Critical ||
						f.Problem == operate.Unchecked && c.Bool("strict")
				}
				if findings := s.news(report.Findings); c.Bool(flagJSON) {
					all = append(all, findings...)
				} else {
					a.printFindings(findings, "nothing found")
				}
				return nil
			})
			if c.Bool(flagJSON) {
				err = errors.Join(err, a.printSnakeJSON(all))
			}
			if err == nil && bad {
				return errFound
			}
			return err
		},
	}
}

// eachPlan is each, but goes by the flags if --policy and queues are named.
func (a app) eachPlan(
	ctx context.Context, c *cli.Command, f func(*session, topology.Plan) error,
) error {
	if c.String(flagPolicy) == "" || c.NArg() == 0 {
		return a.each(ctx, c, c.Args().Slice(), f)
	}
	var errs []error
	for _, queue := range c.Args().Slice() {
		errs = append(errs, a.planned(ctx, c, queue, f))
	}
	return errors.Join(errs...)
}

// verify verifies a plan. If its wait queues are a guess, a missing one is not critical.
func (s *session) verify(ctx context.Context, plan topology.Plan) (operate.Report, error) {
	report, err := overview.Verify(ctx, s.operator, s.vhost, plan)
	if s.guesses() {
		soften(plan, report.Findings)
	}
	criticalFirst(report.Findings)
	report.Findings = orEmpty(report.Findings)
	return report, err
}

// news returns the findings without those about the broker that were said of another queue.
func (s *session) news(findings []operate.Finding) []operate.Finding {
	news := slices.DeleteFunc(slices.Clone(findings), func(f operate.Finding) bool {
		return slices.Contains(s.said, f)
	})
	for _, f := range news {
		if f.Kind == "broker" {
			s.said = append(s.said, f)
		}
	}
	return news
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
}

func criticalFirst(findings []operate.Finding) {
	slices.SortStableFunc(findings, func(a, b operate.Finding) int {
		return strings.Compare(string(a.Severity), string(b.Severity))
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
