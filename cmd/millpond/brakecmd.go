package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/fleet"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

func (a app) brake() *cli.Command {
	return &cli.Command{
		Name: "brake", Usage: "brakes, which stop all processes that share one while a downstream " +
			"is out: list, stop, start",
		Commands: []*cli.Command{a.brakeList(), a.brakeStop(), a.brakeStart()},
	}
}

const (
	// defaultStop is the value of brake stop --for.
	defaultStop  = time.Hour
	flagNobodyUp = "nobody-up"
)

// byOf returns the name of the operator.
func byOf(c *cli.Command) string { return cmp.Or(c.String(flagBy), editor()) }

func (a app) brakeList() *cli.Command {
	return &cli.Command{
		Name: "list", Usage: "list the brakes of the virtual host, stopped ones first: since when, by " +
			"whom, why, and which process probes",
		ArgsUsage: "[NAME…]", ShellComplete: a.completeBrakes,
		Description: "Without the management API only named brakes are listed.",
		Action: func(ctx context.Context, c *cli.Command) error {
			return a.opened(ctx, c, func(s *session) error {
				states, err := s.brakesOf(ctx, c.Args().Slice())
				switch {
				case err != nil && len(states) == 0:
					return err
				case c.Bool(flagJSON):
					return errors.Join(err, a.printJSON(orEmpty(states)))
				case len(states) == 0:
					fmt.Fprintf(a.out, "virtual host %q has no brake\n", s.vhost.Vhost)
					return err
				}
				return errors.Join(err, a.brakeTable(states))
			})
		},
	}
}

// brakesOf returns the named brakes, or all, stopped ones first.
func (s *session) brakesOf(ctx context.Context, names []string) (
	states []header.BrakeState, err error,
) {
	switch {
	case len(names) > 0:
		var errs []error
		for _, name := range distinct(names) {
			state, err := s.operator.Brake(ctx, name)
			switch {
			case errors.Is(err, operate.ErrNoBrake):
				errs = append(errs, noBrake(name))
			case err != nil:
				errs = append(errs, err)
			default:
				states = append(states, state)
			}
		}
		err = errors.Join(errs...)
	case s.vhost == nil:
		return nil, usage("name the brakes, or the management API with --%s, because AMQP cannot "+
			"list them and the API cannot be asked: %v", flagManagement, s.blind)
	default:
		states, err = s.operator.Brakes(ctx)
	}
	slices.SortStableFunc(states, overview.StoppedFirst) // by name among the same
	return states, err
}

func noBrake(name string) error {
	return notFound("there is no brake %q: millpond brake list has the names", name)
}

func (a app) brakeTable(states []header.BrakeState) error {
	rows := [][]string{{"brake", "state", "since", "by", "cause", "probes"}}
	for _, b := range states {
		row := []string{b.Name, "open", "-", "-", "-", "-"}
		if b.Stopped {
			row = []string{
				b.Name, "stopped", when(b.Since), orDash(b.By), orDash(b.Cause), orDash(b.Prober),
			}
			switch {
			case b.Unknown:
				row[1] = "not known"
			case b.Manual:
				row[1] = "stopped by hand"
				row[5] = "from " + when(b.Until)
			}
		}
		rows = append(rows, row)
	}
	return a.table(rows)
}

func (a app) brakeStop() *cli.Command {
	return &cli.Command{
		Name: "stop", Usage: "stop all processes that share a brake, for a planned downtime",
		ArgsUsage: "NAME", ShellComplete: a.completeBrakes,
		Description: "The processes stop consuming within a second. Messages in progress are " +
			"finished, the rest\nstays in the queues. After --for the processes probe, one message at a " +
			"time, and start when\nthe downstream is back; brake start starts them before. Processes that " +
			"come later stop, too.",
		Flags: []cli.Flag{
			&cli.DurationFlag{
				Name: "for", Value: defaultStop, Usage: "how long at most, as in 30m or 2h; 24h is the most",
			},
			&cli.StringFlag{Name: "cause", Usage: "`TEXT` that says why, which all see"},
			&cli.BoolFlag{
				Name: flagNobodyUp, Usage: "also where no process shares the brake now: the processes that " +
					"start later stop",
			},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			return a.onBrake(ctx, c, func(o *operate.Operator, name string) error {
				if err := a.mayStop(ctx, c, o, name); err != nil {
					return err
				}
				limit := c.Duration("for")
				until := time.Now().Add(limit)
				var before overview.FormerStop
				shared := false
				err := a.audited(c, "", new(operate.Filter), func(e *auditlog.Entry) (err error) {
					before, shared, err = overview.StopBrake(ctx, o, e, name, c.String("cause"), limit)
					return err
				})
				if err != nil {
					return err
				}
				if c.Bool(flagJSON) {
					return a.printJSON(before.In(map[string]any{
						"name": name, "stopped": true, "shared": shared, "until": until.UTC(),
					}))
				}
				fmt.Fprintf(a.out, "brake %s is stopped until %s at most; start it before with: "+
					"millpond brake start %s%s\n", harmless(name), when(until), audit.ShellWord(name),
					before.Said("\n"))
				if !shared {
					_, err = fmt.Fprintln(a.out, a.colour(yellow, "no process shares this brake now: the "+
						"processes that start later stop"))
					return err
				}
				return nil
			})
		},
	}
}

// mayStop refuses to stop a brake that no process shares, because its name may be misspelled: it
// would stand first on all pages, above the true outage. AMQP shows that; only the management API
// knows the other names.
func (a app) mayStop(ctx context.Context, c *cli.Command, o *operate.Operator, name string) error {
	if c.Bool(flagNobodyUp) {
		return nil
	}
	if err := fleet.CheckName(name); err != nil {
		return usage("%v", err)
	}
	part, err := o.Inspect(ctx, topology.Plan{Queue: fleet.Prefix + name})
	if err != nil || part.Queues[0].Consumers.N > 0 {
		return err
	}
	known := "only the management API shows which there are (--" + flagManagement + ")"
	err = a.opened(ctx, c, func(s *session) error {
		if s.vhost != nil {
			others := slices.DeleteFunc(brakeNames(s.vhost), func(n string) bool { return n == name })
			known = "other brakes: " + cmp.Or(some(others), "none")
		}
		return nil
	})
	return errors.Join(err, notFound("no process shares a brake %q, so nothing was stopped; %s; for "+
		"processes that start later pass --%s", name, known, flagNobodyUp))
}

func (a app) brakeStart() *cli.Command {
	return &cli.Command{
		Name: "start", Usage: "start all processes that share a brake, also where they have stopped " +
			"by themselves",
		ArgsUsage: "NAME", ShellComplete: a.completeBrakes,
		Description: "Where the downstream is still out, the processes stop again after the failures " +
			"that each new\noutage takes.",
		Action: func(ctx context.Context, c *cli.Command) error {
			return a.onBrake(ctx, c, func(o *operate.Operator, name string) error {
				var before overview.FormerStop
				open := false
				err := a.audited(c, "", new(operate.Filter), func(e *auditlog.Entry) (err error) {
					before, open, err = overview.StartBrake(ctx, o, e, name)
					return err
				})
				switch {
				case errors.Is(err, operate.ErrNoBrake):
					return noBrake(name)
				case err != nil:
					return err
				case c.Bool(flagJSON):
					return a.printJSON(before.In(map[string]any{
						"name": name, "stopped": false, "was_open": open,
					}))
				case open:
					_, err = fmt.Fprintf(a.out, "brake %s was not stopped\n", harmless(name))
					return err
				}
				_, err = fmt.Fprintf(a.out, "brake %s is open: the processes start%s\n", harmless(name),
					before.Said("\n"))
				return err
			})
		},
	}
}

// onBrake connects, and calls f with the one argument. The management API is not needed: a command
// for an outage must not wait for it.
func (a app) onBrake(
	ctx context.Context, c *cli.Command, f func(o *operate.Operator, name string) error,
) (err error) {
	name, err := argument(c, "the name of one brake")
	if err != nil {
		return err
	}
	o, err := a.connect(ctx, c, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	return f(o, name)
}

// completeBrakes offers the names of brakes.
func (a app) completeBrakes(ctx context.Context, c *cli.Command) {
	a.complete(ctx, c, brakeNames)
}

func brakeNames(found *operate.View) []string {
	return namesOf(found.Brakes, func(b operate.Brake) string { return b.Name })
}
