package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/cmd/millpond/internal/lettertext"
	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

func (a app) dead() *cli.Command {
	return &cli.Command{
		Name: "dead", Usage: "dead letters: list, groups, show, replay, discard, export, import",
		Commands: []*cli.Command{
			a.deadList(), a.deadGroups(), a.deadShow(), a.deadReplay(), a.discard(a.deadLetters()),
			a.export(a.deadLetters()), a.deadImport(),
		},
	}
}

// shownJSON is a dead letter or a stranded message with everything.
type shownJSON struct {
	operate.StrandedMessage
	Origin  string          `json:"origin"`
	Message json.RawMessage `json:"message"`
}

func (a app) deadList() *cli.Command {
	return &cli.Command{
		Name: "list", Usage: "list dead letters, oldest first; with --json one object a line",
		ArgsUsage: "[QUEUE…]", Description: aboutPositions, ShellComplete: a.completeQueues,
		Flags: filterFlags(),
		Action: a.onLetters(func(ctx context.Context, l *letters) error {
			return l.list(ctx, "%-6s  %-36s  %-20s  %8s  %-11s  %-16s  %s\n",
				[]any{"#", "id", "dead at", "attempts", "reason", "handler", "error"}, noLetters,
				func(m operate.StrandedMessage) []any {
					return []any{
						strconv.Itoa(m.Position), oneLine(m.ID), when(m.DeadAt), strconv.Itoa(m.Attempts),
						orDash(oneLine(string(m.Reason))), orDash(oneLine(m.Handler)), orDash(oneLine(m.Error)),
					}
				})
		}),
	}
}

const noLetters = "no dead letters\n"

// list writes messages as they come, because they may be many: as lines of JSON without their
// history, or in columns of fixed width. none is said where there are none.
func (l *letters) list(
	ctx context.Context, columns string, titles []any, none string,
	cells func(operate.StrandedMessage) []any,
) error {
	n := 0
	for m, err := range l.all(ctx) {
		if err != nil {
			return err
		}
		if l.c.Bool(flagJSON) {
			m.History = nil
			err = l.printLine(m)
		} else {
			if n++; n == 1 {
				fmt.Fprintf(l.out, columns, titles...)
			}
			_, err = fmt.Fprintf(l.out, columns, cells(m)...)
		}
		if err != nil {
			return err
		}
	}
	if n == 0 && !l.c.Bool(flagJSON) {
		_, err := fmt.Fprint(l.out, none)
		return err
	}
	return nil
}

func (a app) deadShow() *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "show everything of a dead letter", ArgsUsage: "[QUEUE…] ID",
		Description: aboutPositions + "\nA number that is the ID of no letter is a position, too.",
		Flags:       []cli.Flag{fullPayload()},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.NArg() == 0 {
				return usage("%s takes the id of a letter, after the names of queues", c.FullName())
			}
			queues, id := c.Args().Slice()[:c.NArg()-1], c.Args().Get(c.NArg()-1)
			found := 0
			err := a.each(ctx, c, queues, func(s *session, plan topology.Plan) error {
				l := &letters{session: s, plan: plan, filter: operate.Filter{IDs: []string{id}}}
				return l.choose(ctx, func(ctx context.Context, l *letters) error {
					n, err := l.showAll(ctx)
					// A number that is no letter's ID is the position that the list shows.
					if at, notNumber := strconv.Atoi(id); err == nil && n == 0 && notNumber == nil {
						l.filter = operate.Filter{Match: func(l operate.Letter) bool { return l.Position == at }}
						n, err = l.showAll(ctx)
					}
					found += n
					if err == nil && n == 0 && len(queues) == 1 {
						err = notFound("there is no letter %q in queue %q", id, plan.Dead.RoutingKey)
					}
					return err
				})
			})
			if err == nil && found == 0 {
				err = notFound("there is no letter %q in any of the dead-letter queues", id)
			}
			return err
		},
	}
}

func fullPayload() cli.Flag {
	return &cli.BoolFlag{
		Name: "full", Usage: "the whole payload, also where it has more than 4 KiB; " +
			"--json always has it",
	}
}

// showAll shows the messages that the filter chooses, and counts them.
func (l *letters) showAll(ctx context.Context) (found int, err error) {
	for m, err := range l.all(ctx) {
		if err == nil {
			err = l.show(found, m)
		}
		if err != nil {
			return found, err
		}
		found++
	}
	return found, nil
}

// show shows a dead letter or a stranded message after so many others.
func (l *letters) show(others int, m operate.StrandedMessage) error {
	if l.c.Bool(flagJSON) {
		message, err := operate.Encode(m.Delivery)
		if err != nil {
			return err
		}
		return l.printJSON(shownJSON{m, m.OriginExchange + " " + m.OriginRoutingKey, message})
	}
	if others > 0 {
		fmt.Fprintln(l.out)
	}
	attempts := strconv.Itoa(m.Attempts)
	rows := [][]string{
		{"id", m.ID},
		{"position", strconv.Itoa(m.Position)},
		{"queue", orDash(m.Queue)},
		{"dead at", when(m.DeadAt)},
		{"reason", orDash(string(m.Reason))},
		{"attempts", attempts},
	}
	if l.stranded {
		rows = [][]string{
			{"id", m.ID},
			{"for queue", orDash(m.Queue)},
			{"stranded at", when(m.DeadAt)},
			{"cause", string(m.Cause)},
			{"why", m.Why},
			{"wait queue", orDash(m.WaitQueue)},
			{"failures", attempts},
		}
	}
	return l.details(m.Letter, append(rows, [][]string{
		{"handler", orDash(m.Handler)},
		{"class", orDash(string(m.Class))},
		{"error", orDash(m.Error)},
		{"replays", strconv.Itoa(m.Replays)},
		{"origin", fmt.Sprintf("exchange %q, routing key %q", m.OriginExchange, m.OriginRoutingKey)},
	}...))
}

// details prints rows, and below them everything else of a message.
func (s *session) details(l operate.Letter, rows [][]string) error {
	d := l.Delivery
	rows = append(rows, lettertext.Properties(d)...)
	if !d.Timestamp.IsZero() {
		rows = append(rows, []string{"timestamp", when(d.Timestamp)})
	}
	if !l.Deadline.IsZero() {
		rows = append(rows, []string{"deadline", when(l.Deadline) + countedFrom(l.DeadlineFrom)})
	}
	if err := s.columns(rows, harmless); err != nil {
		return err
	}
	s.history(l.History)
	fmt.Fprintln(s.out, "\nheaders")
	rows = nil
	for _, key := range slices.Sorted(maps.Keys(d.Headers)) {
		value := d.Headers[key]
		rows = append(rows, []string{"  " + key, lettertext.TypeName(value), operate.HeaderText(value)})
	}
	if err := s.columns(rows, harmless); err != nil {
		return err
	}
	body := d.Body
	if !s.c.Bool("full") {
		body = overview.Beginning(body, shownBytes)
	}
	fmt.Fprintf(s.out, "\npayload, %s\n%s\n", plural(len(d.Body), "byte"), payload(body))
	if left := len(d.Body) - len(body); left > 0 {
		fmt.Fprintf(s.out, "… %s more; --full prints all\n", plural(left, "byte"))
	}
	return nil
}

// countedFrom names the time that the expiration of a letter was counted from.
func countedFrom(from string) string {
	return map[string]string{
		keys.FromTimestamp: ", its expiration counted from the timestamp of the producer",
		keys.FromArrival:   ", its expiration counted from its first arrival",
		keys.FromPublish:   ", its expiration counted from the publish of the delayed message",
	}[from]
}

func (a app) history(entries []header.AttemptError) {
	if len(entries) == 0 {
		return
	}
	fmt.Fprintln(a.out, "\nhistory")
	rows := [][]string{}
	for _, e := range entries {
		rows = append(rows, []string{
			"  " + strconv.Itoa(e.Attempt), when(e.At), orDash(e.Handler), orDash(string(e.Class)),
			orDash(e.Delay), orDash(string(e.Reason)), e.Error,
		})
	}
	_ = a.columns(rows, harmless)
}

// shownBytes is the most of a payload that is shown without --full, and indented.
const shownBytes = 4 << 10

// payload writes short JSON indented, text as it is, anything else as hex. Deeply nested JSON is
// not indented, because that may make it a thousand times as long.
func payload(body []byte) string {
	var pretty bytes.Buffer
	if len(body) <= shownBytes && json.Indent(&pretty, body, "", "  ") == nil &&
		pretty.Len() <= 4*shownBytes {
		return excerpt.JSON(pretty.String())
	}
	body = bytes.ReplaceAll(body, []byte("\r\n"), []byte("\n"))
	if utf8.Valid(body) && !bytes.ContainsFunc(body, excerpt.Unshown) {
		return string(body)
	}
	return strings.TrimSuffix(hex.Dump(body), "\n")
}
