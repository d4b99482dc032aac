package main

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

const aboutQueues = "Without QUEUE it acts on all queues of the virtual host.\n"

const aboutPositions = `An ID may also be the position of a letter, #1: its number in the list of
all dead letters of the queue, at the time of this command. Quote it for the shell: '#1'.`

// letters are the dead letters, or the stranded messages, of one queue that a command works on.
type letters struct {
	*session
	kind
	plan   topology.Plan // of stranded messages: the queue that has them, also as Dead
	filter operate.Filter
	limit  int
}

// amongQueues says on how many queues the command acts, where they are several.
func (l *letters) amongQueues() string {
	if !l.several {
		return ""
	}
	return fmt.Sprintf(", one of %d queues,", len(l.plans))
}

// from is the queue that has the messages.
func (l *letters) from() string { return l.plan.Dead.RoutingKey }

// all returns the messages. A dead letter has no Cause.
func (l *letters) all(ctx context.Context) iter.Seq2[operate.StrandedMessage, error] {
	if l.stranded {
		return l.operator.Stranded(ctx, l.from(), l.filter, l.limit)
	}
	return func(yield func(operate.StrandedMessage, error) bool) {
		for letter, err := range l.operator.Dead(ctx, l.plan, l.filter, l.limit) {
			if !yield(operate.StrandedMessage{Letter: letter}, err) {
				return
			}
		}
	}
}

// act is the part of a command that works on the messages of one queue.
type act func(ctx context.Context, l *letters) error

// kind are the messages that a group of commands is about.
type kind struct {
	one, about string
	stranded   bool
	flags      []cli.Flag // of a filter
	on         func(act) cli.ActionFunc
}

func (a app) deadLetters() kind {
	return kind{
		one: deadLetter, about: aboutPositions, flags: filterFlags(), on: a.onLetters,
	}
}

// onLetters makes the action of a command that takes queues and the flags of filterFlags. A queue
// that keeps the letters of several queues is worked on once.
func (a app) onLetters(act act) cli.ActionFunc {
	return func(ctx context.Context, c *cli.Command) error {
		filter, limit, err := filterOf(c, time.Now())
		if err != nil {
			return err
		}
		done := map[string]bool{}
		return a.each(ctx, c, c.Args().Slice(), func(s *session, plan topology.Plan) error {
			if s.vhost != nil && plan.Dead.Exchange+plan.Dead.RoutingKey == "" {
				return usage("the dead-letter queue of %q is not known: name it with --dlq%s", plan.Queue,
					s.candidates())
			}
			if dead := plan.Dead.RoutingKey; done[dead] && dead != "" && c.Name != "replay" {
				_, err := fmt.Fprintf(a.err, "millpond: the dead letters of %s are in queue %s: see above\n",
					harmless(plan.Queue), harmless(dead))
				return err
			}
			done[plan.Dead.RoutingKey] = true
			if s.several && slices.ContainsFunc(filter.IDs, position.MatchString) {
				return usage("a position is one of one queue: name the queue")
			}
			l := &letters{s, a.deadLetters(), plan, filter, limit}
			return l.choose(ctx, act)
		})
	}
}

// onChosen is k.on for a command that acts: without a filter it needs --all, unless it is a
// rehearsal.
func (a app) onChosen(k kind, act act) cli.ActionFunc {
	return func(ctx context.Context, c *cli.Command) error {
		filters := slices.DeleteFunc(flagNames(k.flags), func(n string) bool { return !c.IsSet(n) })
		chosen := len(filters) > 0 || k.stranded && c.NArg() > 0 // by the queues that they waited for
		switch {
		case c.Bool("all") && len(filters) > 0:
			return usage("--all and --%s contradict each other: leave out one of them", filters[0])
		case !c.Bool("all") && !chosen && !c.Bool("dry-run"):
			return usage("choose with a filter, such as --error TEXT or --limit N, or pass --all for every "+
				"%s of %s; %s --help has all filters", k.one, c.Name, c.FullName())
		}
		return k.on(func(ctx context.Context, l *letters) error {
			if l.several && l.limit > 0 && !l.stranded {
				return usage("--limit counts the messages of one queue: name the queue")
			}
			return act(ctx, l)
		})(ctx, c)
	}
}

func flagNames(flags []cli.Flag) []string {
	return namesOf(flags, func(f cli.Flag) string { return f.Names()[0] })
}

// acting returns the flags of a command that acts: of the filter, others, and --all.
func (k kind) acting(more ...cli.Flag) []cli.Flag {
	return slices.Concat(k.flags, more, []cli.Flag{
		&cli.BoolFlag{Name: "all", Usage: "every " + k.one + ", without a filter"},
	})
}

// choose looks up the positions among the IDs of the filter, and acts.
func (l *letters) choose(ctx context.Context, act act) error {
	if !slices.ContainsFunc(l.filter.IDs, position.MatchString) {
		return act(ctx, l)
	}
	at, err := l.byPosition(ctx)
	if err != nil {
		return err
	}
	if err := act(ctx, l); err != nil || l.limit > 0 {
		return err
	}
	for _, n := range slices.Sorted(maps.Keys(at)) {
		if !at[n].seen {
			err = notFound("letter #%d was %q, and it is no longer there: list queue %q again",
				n, at[n].id, l.plan.Dead.RoutingKey)
		}
	}
	return err
}

// position is the position of a letter where an ID is expected. A number alone is an ID, because
// message ids may be numbers, and a command must not move or discard another letter.
var position = regexp.MustCompile(`^#[0-9]{1,9}$`)

// place is a letter at a position, at the first look, and whether the second one has seen it there.
type place struct {
	id          string
	there, seen bool
}

// byPosition looks at the queue and replaces the positions in the filter by the letters that are
// there now. The command then takes a letter only where position and ID are still the same, because
// the queue may change between the two looks.
func (l *letters) byPosition(ctx context.Context) (at map[int]*place, err error) {
	at = map[int]*place{}
	ids := map[string]bool{}
	for _, text := range l.filter.IDs {
		if n, err := strconv.Atoi(strings.TrimPrefix(text, "#")); err == nil && text[0] == '#' {
			at[n] = &place{}
		} else {
			ids[text] = true
		}
	}
	total := 0
	for letter, err := range l.operator.Dead(ctx, l.plan, operate.Filter{}, 0) {
		if err != nil {
			return nil, err
		}
		total = letter.Position
		if p := at[total]; p != nil {
			p.id, p.there = letter.ID, true
		}
	}
	for _, n := range slices.Sorted(maps.Keys(at)) {
		if !at[n].there {
			return nil, notFound("there is no letter #%d in queue %q, which holds %s",
				n, l.plan.Dead.RoutingKey, plural(total, "letter"))
		}
	}
	l.filter.IDs = nil
	l.filter.Match = func(letter operate.Letter) bool {
		p := at[letter.Position]
		placed := p != nil && p.id == letter.ID
		if placed {
			p.seen = true
		}
		return placed || ids[letter.ID]
	}
	return at, nil
}

// filterFlags choose letters.
func filterFlags() []cli.Flag { return conditions("letter", "dead-lettered") }

// conditions are the flags of a filter, all of them or those with these names. died is what became
// of a message at --since.
func conditions(one, died string, names ...string) []cli.Flag {
	place := map[string]string{"letter": ", or at this position"}[one]
	all := []cli.Flag{
		&cli.StringSliceFlag{
			Name: "id", Usage: "the " + one + " with this `ID`" + place + "; may be repeated",
		},
		&cli.StringFlag{Name: "reason", Usage: "of the dead letter: permanent, exhausted, max_age …"},
		&cli.StringFlag{
			Name: "error", Usage: "part of the `TEXT` of the error, or /a regular expression/",
		},
		&cli.StringFlag{Name: "handler", Usage: "`NAME` of the handler that gave up"},
		&cli.StringFlag{
			Name: "since", Usage: died + " at this `TIME` or later: " +
				"2026-03-01, 2026-03-01T12:00:00Z, or 2h for two hours ago",
		},
		&cli.StringFlag{Name: "until", Usage: died + " before this `TIME`"},
		&cli.StringSliceFlag{
			Name: "header", Usage: "the message has this header, `K=V`, or K=/a regular expression/; may " +
				"be repeated",
		},
		&cli.StringFlag{
			Name: "payload", Usage: "part of the `TEXT` of the payload, or /a regular expression/, in " +
				`which \xff is the byte 255 of a payload that is not UTF-8`,
		},
		&cli.StringFlag{Name: "group", Usage: "of the group with this `ID`, which dead groups prints"},
		&cli.IntFlag{Name: "limit", Usage: "at most `N` " + one + "s, the oldest"},
	}
	return slices.DeleteFunc(all, func(f cli.Flag) bool {
		return len(names) > 0 && !slices.Contains(names, f.Names()[0])
	})
}

// filterOf reads the flags; times ago are counted from now.
func filterOf(c *cli.Command, now time.Time) (f operate.Filter, limit int, err error) {
	for _, name := range flagNames(filterFlags()) {
		values, several := c.Value(name).([]string)
		if !several {
			values = []string{c.String(name)}
		}
		for _, value := range values {
			if name == "limit" || !c.IsSet(name) {
				continue
			}
			// An empty text would choose all: a variable of a script that is not set, for example.
			if err := f.Set(name, value, now); err != nil {
				return f, 0, usage("--%v", err)
			}
		}
	}
	if limit = c.Int("limit"); limit < 0 || limit == 0 && c.IsSet("limit") {
		return f, 0, usage("--limit %d: it must be positive", limit)
	}
	return f, limit, nil
}
