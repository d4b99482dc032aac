package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/topology/operate"
)

const aboutRamps = `

With --canary, --ramp, --stop-at, --watch, --settle, --every or --max-replays the replay is a ramp:
the first letters, the canary, are watched until they are handled or dead again. The rest follows in
the steps of --ramp, each watched in the same way, and after them all at once at --rate. The command
stops within a second when more than --stop-at of the replayed letters are dead again; the rest
stays, and the same command goes on with it. It ends with

  started = handled + dead again + waiting + left

handled: seen nowhere for the time of --settle, neither in the queue nor in its wait or dead-letter
queues. A slow handler may still have some of them. unsettled: in the queue, at a handler, or in a
wait queue that cannot be looked at. left: not replayed.`

// rampFlags make a replay a ramp.
func rampFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{
			Name: "canary", Value: 3, HideDefault: true,
			Usage: "replay `N` letters first and watch them; 3 without it, 0 for none",
		},
		&cli.StringFlag{
			Name: "ramp", Usage: "the `SIZES` of the next steps: 1,10,100 replays one letter and watches " +
				"it, then ten, then a hundred, then the rest at --rate",
		},
		&cli.StringFlag{
			Name:  "stop-at",
			Usage: "stop when more than this `SHARE` of the replayed letters are dead again; 5% without it",
		},
		&cli.DurationFlag{
			Name: "watch", HideDefault: true,
			Usage: "stop when a step takes longer than this `TIME` to settle; 1m without it",
		},
		&cli.DurationFlag{
			Name: "settle", HideDefault: true,
			Usage: "a letter that is seen nowhere for this `TIME` is handled: longer than " +
				"the handler usually takes; 5s without it",
		},
		&cli.DurationFlag{
			Name: "every", HideDefault: true,
			Usage: "begin again this `TIME` after the end, also after a stop; " +
				"no letter is replayed twice in between",
		},
		&cli.BoolFlag{
			Name: "until-empty", Usage: "with --every: end when no letter is left to replay",
		},
		&cli.IntFlag{
			Name: "max-replays", HideDefault: true,
			Usage: "pass over letters that were replayed `N` times before; " +
				"no limit without it, 5 with --every",
		},
	}
}

func rehearsal() cli.Flag {
	return &cli.BoolFlag{
		Name: "dry-run", Usage: "rehearse: count the letters, name the problems of the queue that " +
			"would get them, and move nothing; exit code 1 if one is critical",
	}
}

// ramps reports whether a flag makes the replay a ramp.
func ramps(c *cli.Command) bool {
	return slices.ContainsFunc(rampFlags(), func(f cli.Flag) bool { return c.IsSet(f.Names()[0]) })
}

// rampOptions reads the flags. The library has the defaults of flags that are missing.
func rampOptions(c *cli.Command, base operate.MoveOptions) (operate.RepeatOptions, error) {
	o := operate.RepeatOptions{
		RampOptions: operate.RampOptions{
			MoveOptions: base, Canary: cmp.Or(c.Int("canary"), -1), Settle: c.Duration("settle"),
			Watch: c.Duration("watch"),
		},
		Every: c.Duration("every"), UntilEmpty: c.Bool("until-empty"),
	}
	o.MaxReplays = c.Int("max-replays")
	if o.Every > 0 && !c.IsSet("max-replays") {
		o.MaxReplays = 5 // also in a rehearsal
	}
	for _, name := range []string{"canary", "max-replays"} {
		if c.Int(name) < 0 {
			return o, usage("--%s %d is negative", name, c.Int(name))
		}
	}
	for _, name := range []string{"settle", "watch", "every"} {
		if c.IsSet(name) && c.Duration(name) <= 0 {
			return o, usage("--%s %v: write 500ms, 10s, 2m", name, c.Duration(name))
		}
	}
	if o.UntilEmpty && o.Every == 0 {
		return o, usage("--until-empty goes with --every")
	}
	if ramps(c) && slices.ContainsFunc(c.StringSlice("id"), position.MatchString) {
		return o, usage("--id: a position changes when letters leave the queue: " +
			"name the ID, or replay without --canary and the like")
	}
	var err error
	if o.Steps, err = overview.Steps(c.String("ramp")); err != nil {
		return o, usage("--ramp %v", err)
	}
	o.StopAt, err = stopAt(c.String("stop-at"))
	return o, err
}

// stopAt reads --stop-at. Without it the library has its default, which is 0 here.
func stopAt(flag string) (share float64, err error) {
	if flag == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(strings.TrimSuffix(flag, "%"), 64)
	if err != nil || !strings.HasSuffix(flag, "%") || !(n >= 0) || n > 100 {
		return 0, usage("--stop-at %q: write 5%%, 0%% to 100%%", flag)
	}
	return max(n/100, math.SmallestNonzeroFloat64), nil
}

// rampJSON is the outcome of a ramp.
type rampJSON struct {
	Queue string `json:"queue"`
	operate.RampResult
	Unseen string `json:"unseen,omitempty"`
	Error  string `json:"error,omitempty"`
}

// ramp replays step by step, once or every so often.
func (l *letters) ramp(ctx context.Context, o operate.RepeatOptions) error {
	switch {
	case o.Every > 0 && l.several:
		return usage("--every works on one queue: name it")
	case l.guesses():
		fmt.Fprintln(l.err, guessed)
	}
	o.Report = l.rampLine()
	if o.Every == 0 {
		var r operate.RampResult
		var found operate.Progress
		err := l.audited(l.c, l.plan.Queue, &o.Filter, func(e *auditlog.Entry) (err error) {
			r, err = l.operator.Ramp(ctx, l.plan, o.RampOptions)
			e.Count, e.Done = r.Started, r.Replayed()
			found = operate.Progress{Chosen: r.Started, Foreign: r.Foreign, Spent: r.Spent}
			l.note(e, found, err)
			return err
		})
		return errors.Join(matched(l.c, found, err), l.ramped(r, err))
	}
	var first error
	moved := 0
	o.Ran = func(r operate.RampResult, err error) {
		moved += r.Replayed()
		if errors.Is(err, operate.ErrInvalidOptions) || errors.Is(err, operate.ErrNoQueue) ||
			errors.Is(err, operate.ErrUnsafePeek) {
			return // it ends with this error
		}
		if writeErr := l.ramped(r, err); first == nil {
			first = writeErr
		}
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(l.err, "millpond: %v\n", err)
		}
	}
	err := l.audited(l.c, l.plan.Queue, &o.Filter, func(e *auditlog.Entry) error {
		err := l.operator.RampEvery(ctx, l.plan, o)
		e.Count, e.Done = moved, moved
		return err
	})
	return errors.Join(err, first)
}

// ramped writes the outcome of a run.
func (l *letters) ramped(r operate.RampResult, err error) error {
	if l.terminal(l.err) {
		fmt.Fprint(l.err, "\r\x1b[K") // over the line of rampLine
	}
	if l.c.Bool(flagJSON) {
		return l.printLine(rampJSON{l.plan.Queue, r, errorText(r.Unseen), errorText(err)})
	}
	fmt.Fprintln(l.out, r)
	switch {
	case r.Handled == 0:
	case r.AtHandler.Known():
		fmt.Fprintf(l.out, "handled: seen in no queue; consumers hold %s of the queue, "+
			"as the management API has counted, which may be among them\n",
			plural(r.AtHandler.N, "message"))
	default:
		fmt.Fprintln(l.out, "handled: seen in no queue; how many of them are still at a handler is "+
			"unknown, because only the management API shows it")
	}
	l.printPassed(operate.Progress{Foreign: r.Foreign, Spent: r.Spent, Refused: r.Refused})
	if r.Unseen != nil {
		fmt.Fprintf(l.out, "the last look was not possible, so that unsettled letters may also wait or "+
			"be dead again: %v\n", r.Unseen)
	}
	return nil
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// rampLine shows the counts: on a terminal as they change, elsewhere once for each step.
func (a app) rampLine() func(operate.RampResult) {
	active := a.terminal(a.err)
	var shown time.Time
	step := ""
	return func(r operate.RampResult) {
		now := time.Now()
		switch {
		case r.Step != step && r.Step != "":
			if step != "" && active {
				fmt.Fprintln(a.err)
			}
			step = r.Step
			fmt.Fprintf(a.err, "%s …", step)
			if !active {
				fmt.Fprintln(a.err)
			}
		case active && now.Sub(shown) >= barInterval:
			shown = now
			fmt.Fprintf(a.err, "\r\x1b[K%s: %s", step, r)
		}
	}
}

// rehearsedJSON is the outcome of a rehearsal.
type rehearsedJSON struct {
	Queue string `json:"queue"`
	operate.Rehearsal
	DryRun bool   `json:"dry_run"`
	Error  string `json:"error,omitempty"`
}

// rehearse prints the outcome that a replay would have.
func (l *letters) rehearse(ctx context.Context, o operate.RampOptions) error {
	h, err := l.operator.Rehearse(ctx, l.plan, o)
	if l.guesses() {
		soften(l.plan, h.Findings)
	}
	l.braked(ctx, h)
	criticalFirst(h.Findings)
	code := matched(l.c, h.Progress, err)
	if len(h.Findings) > 0 && h.Findings[0].Severity == operate.Critical {
		code = errors.Join(code, errFound)
	}
	if l.c.Bool(flagJSON) {
		h.Findings = orEmpty(h.Findings)
		return errors.Join(code, l.printSnakeJSON(rehearsedJSON{l.plan.Queue, h, true, errorText(err)}))
	}
	if err != nil && h.Seen == 0 {
		return code // no letter was looked at
	}
	fmt.Fprintf(l.out, "would have replayed %s of %d; nothing was changed\n",
		plural(h.Chosen, "dead letter"), h.Total)
	if h.Consumers.Known() {
		fmt.Fprintf(l.out, "to queue %q, which has %s and %s\n", h.Target,
			plural(h.Consumers.N, "consumer"), plural(h.Ready.N, "ready message"))
	}
	l.printPassed(h.Progress)
	if h.Expiring > 0 {
		fmt.Fprintf(l.out, "%s: with an expiration, which a replay leaves out\n",
			plural(h.Expiring, "letter"))
	}
	l.printFindings(h.Findings, "")
	return code
}

// braked names the brake where it is the reason that the target has no consumer.
func (l *letters) braked(ctx context.Context, h operate.Rehearsal) {
	none := slices.IndexFunc(h.Findings, func(f operate.Finding) bool {
		return f.Problem == operate.Unconsumed && f.Name == h.Target
	})
	if none < 0 || l.vhost == nil {
		return
	}
	for _, b := range l.vhost.Brakes {
		if !slices.Contains(b.Queues, h.Target) {
			continue
		}
		if state, err := l.operator.Brake(ctx, b.Name); err == nil && state.Stopped {
			h.Findings[none].Text = fmt.Sprintf("has no consumer, because brake %s is stopped, so that the "+
				"letters wait in it: millpond brake start %s", b.Name, audit.ShellWord(b.Name))
		}
	}
}

// printPassed says why chosen messages stay.
func (a app) printPassed(p operate.Progress) {
	for _, passed := range []struct {
		n   int
		why string
	}{
		{p.Foreign, "of another queue, passed over; name it with --to"},
		{p.Spent, "replayed too often before, passed over: see --max-replays"},
		{p.Refused, "cannot be changed so, or cannot be published: left"},
	} {
		if passed.n > 0 {
			fmt.Fprintf(a.out, "%s: %s\n", plural(passed.n, "letter"), passed.why)
		}
	}
}
