package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

func (a app) dead() *cli.Command {
	return &cli.Command{
		Name: "dead", Usage: "dead letters: list, show, replay, discard, export, import",
		Commands: []*cli.Command{a.deadList(), a.deadShow(), a.deadReplay(), a.deadDiscard(), a.deadExport(), a.deadImport()},
	}
}

// filterFlags choose letters.
func filterFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "id", Usage: "the letter with this `ID`; may be repeated"},
		&cli.StringFlag{Name: "reason", Usage: "why it was given up: permanent, exhausted, max_age …"},
		&cli.StringFlag{Name: "error", Usage: "part of the `TEXT` of the error, or /a regular expression/"},
		&cli.StringFlag{Name: "handler", Usage: "`NAME` of the handler that gave up"},
		&cli.StringFlag{Name: "since", Usage: "dead-lettered at this `TIME` or later: 2026-03-01T12:00:00Z, or 2h for two hours ago"},
		&cli.StringFlag{Name: "until", Usage: "dead-lettered before this `TIME`"},
		&cli.StringSliceFlag{Name: "header", Usage: "the message has this header, `K=V`; may be repeated"},
		&cli.IntFlag{Name: "limit", Usage: "at most `N` letters, the oldest"},
	}
}

// filterOf is what the flags say; now is for times ago.
func filterOf(c *cli.Command, now time.Time) (f operate.Filter, limit int, err error) {
	f.IDs = c.StringSlice("id")
	f.Reason = header.Reason(c.String("reason"))
	f.Handler = c.String("handler")
	if text := c.String("error"); len(text) > 1 && text[0] == '/' && text[len(text)-1] == '/' {
		if f.ErrorPattern, err = regexp.Compile(text[1 : len(text)-1]); err != nil {
			return f, 0, usage("--error: %v", err)
		}
	} else {
		f.Error = text
	}
	for name, into := range map[string]*time.Time{"since": &f.Since, "until": &f.Until} {
		if *into, err = timeOf(c.String(name), now); err != nil {
			return f, 0, usage("--%s: %v", name, err)
		}
	}
	for _, header := range c.StringSlice("header") {
		key, value, ok := strings.Cut(header, "=")
		if !ok {
			return f, 0, usage("--header %q: write key=value", header)
		}
		if f.Headers == nil {
			f.Headers = map[string]string{}
		}
		f.Headers[key] = value
	}
	if limit = c.Int("limit"); limit < 0 {
		return f, 0, usage("--limit %d is negative", limit)
	}
	return f, limit, nil
}

func timeOf(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil {
		return now.Add(-ago), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, fmt.Errorf("%q is no time: write 2026-03-01T12:00:00Z, or 2h for two hours ago", text)
	}
	return t, nil
}

// letterJSON is a letter in a list.
type letterJSON struct {
	Position int                   `json:"position"`
	ID       string                `json:"id"`
	DeadAt   *time.Time            `json:"dead_at,omitempty"`
	Attempts int                   `json:"attempts"`
	Reason   header.Reason         `json:"reason,omitempty"`
	Error    string                `json:"error,omitempty"`
	Class    header.Class          `json:"class,omitempty"`
	Handler  string                `json:"handler,omitempty"`
	Queue    string                `json:"queue,omitempty"`
	Replays  int                   `json:"replays"`
	Origin   string                `json:"origin,omitempty"`
	Deadline *time.Time            `json:"deadline,omitempty"`
	From     string                `json:"deadline_from,omitempty"`
	History  []header.AttemptError `json:"history,omitempty"`
	Message  json.RawMessage       `json:"message,omitempty"`
}

func jsonOf(l operate.Letter) letterJSON {
	j := letterJSON{
		Position: l.Position, ID: l.ID, Attempts: l.Attempts, Reason: l.Reason, Error: l.Error, Class: l.Class,
		Handler: l.Handler, Queue: l.Queue, Replays: l.Replays,
	}
	if !l.DeadAt.IsZero() {
		j.DeadAt = &l.DeadAt
	}
	if !l.Deadline.IsZero() {
		j.Deadline, j.From = &l.Deadline, l.DeadlineFrom
	}
	return j
}

func (a app) deadList() *cli.Command {
	return &cli.Command{
		Name: "list", Usage: "list dead letters, oldest first; with --json a line for each", ArgsUsage: "QUEUE",
		Flags: append(filterFlags(), &cli.BoolFlag{Name: "group", Usage: "by reason and error, numbers written as #"}),
		Action: func(ctx context.Context, c *cli.Command) error {
			queue, err := queueOf(c)
			if err != nil {
				return err
			}
			filter, limit, err := filterOf(c, time.Now())
			if err != nil {
				return err
			}
			return a.with(ctx, c, queue, func(o *operate.Operator, plan topology.Plan) error {
				letters := first(limit, o.Dead(ctx, plan, filter))
				if c.Bool("group") {
					return a.groups(c, letters)
				}
				return a.list(c, letters)
			})
		},
	}
}

// first ends after so many letters, unless that is 0.
func first(limit int, letters func(func(operate.Letter, error) bool)) func(func(operate.Letter, error) bool) {
	return func(yield func(operate.Letter, error) bool) {
		n := 0
		for l, err := range letters {
			if n++; !yield(l, err) || n == limit {
				return
			}
		}
	}
}

// list writes letters as they come, in columns of fixed width: they may be many.
func (a app) list(c *cli.Command, letters func(func(operate.Letter, error) bool)) error {
	line := json.NewEncoder(a.out)
	line.SetEscapeHTML(false)
	const columns = "%-6s  %-36s  %-20s  %8s  %-11s  %-16s  %s\n"
	n := 0
	for l, err := range letters {
		if err != nil {
			return err
		}
		if c.Bool(flagJSON) {
			if err := line.Encode(jsonOf(l)); err != nil {
				return err
			}
			continue
		}
		if n == 0 {
			fmt.Fprintf(a.out, columns, "#", "id", "dead at", "attempts", "reason", "handler", "error")
		}
		n++
		_, err = fmt.Fprintf(a.out, columns, strconv.Itoa(l.Position), oneLine(l.ID), when(l.DeadAt), strconv.Itoa(l.Attempts),
			orDash(oneLine(string(l.Reason))), orDash(oneLine(l.Handler)), orDash(oneLine(l.Error)))
		if err != nil {
			return err
		}
	}
	if n == 0 && !c.Bool(flagJSON) {
		fmt.Fprintln(a.out, "no dead letters")
	}
	return nil
}

func (a app) groups(c *cli.Command, letters func(func(operate.Letter, error) bool)) error {
	groups, err := operate.GroupByError(letters)
	if err != nil {
		return err
	}
	if c.Bool(flagJSON) {
		return a.printSnakeJSON(groups)
	}
	rows := [][]string{{"count", "reason", "first", "last", "example", "error"}}
	for _, g := range groups {
		rows = append(rows, []string{strconv.Itoa(g.Count), orDash(string(g.Reason)), when(g.First), when(g.Last), g.Example, orDash(g.Error)})
	}
	return a.table(rows)
}

func (a app) deadShow() *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "show everything of a dead letter", ArgsUsage: "QUEUE ID",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "full", Usage: "the whole payload, also where it has more than 4 KiB; --json always has it"}},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.NArg() != 2 {
				return usage("%s takes a queue and the id of a letter", c.FullName())
			}
			queue, id := c.Args().Get(0), c.Args().Get(1)
			return a.with(ctx, c, queue, func(o *operate.Operator, plan topology.Plan) error {
				found := 0
				for l, err := range o.Dead(ctx, plan, operate.Filter{IDs: []string{id}}) {
					if err != nil {
						return err
					}
					if found++; found > 1 {
						fmt.Fprintln(a.out)
					}
					if err := a.show(c, l); err != nil {
						return err
					}
				}
				if found == 0 {
					fmt.Fprintf(a.err, "millpond: there is no letter %q in queue %q\n", id, plan.Dead.RoutingKey)
					return errFound
				}
				return nil
			})
		},
	}
}

func (a app) show(c *cli.Command, l operate.Letter) error {
	d := l.Delivery
	if c.Bool(flagJSON) {
		j := jsonOf(l)
		j.History, j.Origin = l.History, l.OriginExchange+" "+l.OriginRoutingKey
		var err error
		if j.Message, err = operate.Encode(d); err != nil {
			return err
		}
		return a.printJSON(j)
	}
	rows := [][]string{
		{"id", l.ID}, {"position", strconv.Itoa(l.Position)}, {"queue", orDash(l.Queue)}, {"dead at", when(l.DeadAt)},
		{"reason", orDash(string(l.Reason))}, {"attempts", strconv.Itoa(l.Attempts)}, {"handler", orDash(l.Handler)},
		{"class", orDash(string(l.Class))}, {"error", orDash(l.Error)}, {"replays", strconv.Itoa(l.Replays)},
		{"origin", fmt.Sprintf("exchange %q, routing key %q", l.OriginExchange, l.OriginRoutingKey)},
	}
	for name, value := range map[string]string{
		"correlation id": d.CorrelationId, "content type": d.ContentType, "content encoding": d.ContentEncoding,
		"type": d.Type, "app id": d.AppId, "reply to": d.ReplyTo, "expiration": d.Expiration, "user id": d.UserId,
	} {
		if value != "" {
			rows = append(rows, []string{name, value})
		}
	}
	slices.SortStableFunc(rows[11:], func(x, y []string) int { return strings.Compare(x[0], y[0]) })
	if !d.Timestamp.IsZero() {
		rows = append(rows, []string{"timestamp", when(d.Timestamp)})
	}
	if !l.Deadline.IsZero() {
		rows = append(rows, []string{"deadline", when(l.Deadline) + countedFrom(l.DeadlineFrom)})
	}
	if err := a.columns(rows, harmless); err != nil {
		return err
	}
	a.history(l.History)
	fmt.Fprintln(a.out, "\nheaders")
	rows = nil
	for _, key := range slices.Sorted(maps.Keys(d.Headers)) {
		rows = append(rows, []string{"  " + key, typeName(d.Headers[key]), operate.HeaderText(d.Headers[key])})
	}
	if err := a.columns(rows, harmless); err != nil {
		return err
	}
	body := d.Body
	if !c.Bool("full") {
		body = beginning(body)
	}
	fmt.Fprintf(a.out, "\npayload, %s\n%s\n", plural(len(d.Body), "byte"), payload(body))
	if left := len(d.Body) - len(body); left > 0 {
		fmt.Fprintf(a.out, "… %s more; --full prints all\n", plural(left, "byte"))
	}
	return nil
}

// countedFrom says what the expiration of a letter was counted from.
func countedFrom(from string) string {
	switch from {
	case header.FromTimestamp:
		return ", its expiration counted from the timestamp of the producer"
	case header.FromArrival:
		return ", its expiration counted from its first arrival"
	case header.FromPublish:
		return ", its expiration counted from the publish of the delayed message"
	}
	return ""
}

func (a app) history(entries []header.AttemptError) {
	if len(entries) == 0 {
		return
	}
	fmt.Fprintln(a.out, "\nhistory")
	rows := [][]string{}
	for _, e := range entries {
		rows = append(rows, []string{"  " + strconv.Itoa(e.Attempt), when(e.At), orDash(e.Handler), orDash(string(e.Class)), orDash(e.Delay), orDash(string(e.Reason)), e.Error})
	}
	_ = a.columns(rows, harmless)
}

func typeName(value any) string {
	switch value.(type) {
	case nil:
		return "void"
	case []byte:
		return "bytes"
	case []any:
		return "array"
	}
	name := fmt.Sprintf("%T", value)
	return strings.ToLower(name[strings.LastIndex(name, ".")+1:])
}

// shownBytes is how much of a payload is shown without --full, and indented at most.
const shownBytes = 4 << 10

// beginning is the part of a payload that is shown without --full. No character of a
// text is cut in two.
func beginning(body []byte) []byte {
	if len(body) <= shownBytes {
		return body
	}
	for end := shownBytes; end > shownBytes-utf8.UTFMax; end-- {
		if utf8.RuneStart(body[end]) && utf8.Valid(body[:end]) {
			return body[:end]
		}
	}
	return body[:shownBytes]
}

// payload is short JSON indented, text as it is, anything else as hex. Indenting may
// make deeply nested JSON a thousand times as long, which is not done.
func payload(body []byte) string {
	var pretty bytes.Buffer
	if len(body) <= shownBytes && json.Indent(&pretty, body, "", "  ") == nil && pretty.Len() <= 4*shownBytes {
		return pretty.String()
	}
	text := utf8.Valid(body)
	for _, r := range string(body) {
		text = text && (unicode.IsPrint(r) || r == '\n' || r == '\t' || r == '\r')
	}
	if text {
		return string(body)
	}
	return strings.TrimSuffix(hex.Dump(body), "\n")
}
