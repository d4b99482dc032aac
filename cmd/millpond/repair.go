package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
	"github.com/millpond-go/millpond/cmd/millpond/internal/lettertext"
	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// editFlags change letters on their way back.
func editFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{
			Name: "edit", Usage: "open the letter with this `ID`, or at this position, in $VISUAL or " +
				"$EDITOR, show the difference, ask, and replay it; the original is kept",
		},
		&cli.StringSliceFlag{
			Name: "set-header", Usage: "set a header, `K=V`, a string; K:TYPE=V for another type, such " +
				"as attempts:int64=5; may be repeated",
		},
		&cli.StringSliceFlag{Name: "unset-header", Usage: "remove header `K`; may be repeated"},
		&cli.StringFlag{
			Name: "patch", Usage: "change the payload by a JSON patch (RFC 6902), `FILE|JSON`; " +
				"a letter that it does not fit stays",
		},
		&cli.BoolFlag{
			Name: flagNotJSON, Usage: "with --edit: a payload that was JSON may become another one",
		},
		&cli.BoolFlag{Name: "yes", Usage: "do not ask before changed letters are replayed"},
	}
}

// flagNotJSON lets an edit break JSON.
const flagNotJSON = "not-json"

// maxStay is how many letters that stay are named.
const maxStay = 20

// replayChanged rehearses the changes, shows the first, asks, and replays.
func (l *letters) replayChanged(
	ctx context.Context, options operate.MoveOptions, m *changes,
) error {
	if !options.DryRun && !l.c.Bool("yes") {
		if err := l.canAsk(); err != nil {
			return err
		}
	}
	changed, stay := 0, 0
	rehearsal := options
	rehearsal.DryRun = true
	rehearsal.Edit = func(letter operate.Letter, msg *amqp.Publishing) error {
		before, _ := lettertext.Of(letter.Delivery.Headers, letter.Delivery.Body)
		is, err := m.make(msg)
		if err != nil {
			if stay++; stay <= maxStay {
				fmt.Fprintf(l.err, "millpond: letter %s stays: %s\n", oneLine(letter.ID),
					oneLine(err.Error()))
			}
			return err
		}
		if is {
			if changed++; changed == 1 {
				after, _ := lettertext.Of(msg.Headers, msg.Body)
				return l.difference(letter, before, after)
			}
		}
		return nil
	}
	if options.DryRun {
		return l.rehearse(ctx, operate.RampOptions{MoveOptions: rehearsal, Canary: -1})
	}
	p, err := l.operator.Replay(ctx, l.plan, rehearsal)
	stays := errors.Is(err, errStays) || errors.Is(err, topology.ErrTooLarge)
	if err != nil && !stays || p.Chosen == p.Refused {
		return l.report(l.plan.Queue, "replayed", deadLetter, p, err)
	}
	moves := p.Chosen - p.Refused
	fmt.Fprintf(l.err, "%d of %s would be changed; %s would stay\n", changed,
		plural(moves, "letter"), plural(p.Refused, "letter"))
	err = l.ask(l.c, "nothing was changed", "Replay %s of queue %q%s and keep the originals of "+
		"changed ones in queue %q?", plural(moves, "dead letter"), l.from(), l.amongQueues(),
		l.originals())
	if err != nil {
		return err
	}
	options.EditedBy = byOf(l.c)
	edited := false
	options.Edit = func(_ operate.Letter, msg *amqp.Publishing) error {
		is, err := m.make(msg)
		edited = edited || is
		return err
	}
	if err = l.replay(ctx, options); edited {
		l.kept()
	}
	return err
}

// originals is the queue that keeps edited letters as they were.
func (l *letters) originals() string { return l.from() + ".originals" }

// kept says where the originals are.
func (l *letters) kept() {
	if !l.c.Bool(flagJSON) {
		fmt.Fprintf(l.out, "the letters as they were are in queue %s: millpond dead list %s --dlq %s\n",
			harmless(l.originals()), audit.ShellWord(l.plan.Queue), audit.ShellWord(l.originals()))
	}
}

// editor names the user of the tool.
func editor() string {
	host, _ := os.Hostname()
	if u, err := user.Current(); err == nil {
		return u.Username + "@" + host
	}
	return "unknown@" + host
}

// difference shows how a letter changes.
func (a app) difference(l operate.Letter, before, after lettertext.Content) error {
	spans, err := lettertext.Difference(before, after)
	fmt.Fprintf(a.err, "letter %s:\n", oneLine(l.ID))
	for _, s := range spans {
		colour := map[string]string{"-": red, "+": green, "…": yellow}[s.Kind]
		for i, line := range strings.Split(s.Text, "\n") {
			if i > 0 {
				fmt.Fprintln(a.err)
			}
			if line = harmless(line); colour != "" {
				line = a.colour(colour, line)
			}
			fmt.Fprint(a.err, line)
		}
	}
	return err
}

// editOne lets a person edit one letter and replays it. No message is held meanwhile: the letter is
// looked at twice, and moved only if it is still the same.
func (a app) editOne(ctx context.Context, c *cli.Command) error {
	id := c.String("edit")
	if id == "" {
		return usage("--edit is empty: name the ID of a letter")
	}
	for _, name := range append(flagNames(filterFlags()), "all", "rate", "set-header", "unset-header",
		"patch") {
		if c.IsSet(name) {
			return usage("--edit names one letter: leave out --%s", name)
		}
	}
	if c.NArg() != 1 {
		return usage("--edit changes a letter of one queue: name the queue")
	}
	return a.each(ctx, c, c.Args().Slice(), func(s *session, plan topology.Plan) error {
		l := &letters{session: s, plan: plan, filter: operate.Filter{IDs: []string{id}}}
		return l.choose(ctx, editChosen)
	})
}

func editChosen(ctx context.Context, l *letters) error {
	command := strings.Fields(cmp.Or(l.environment("VISUAL"), l.environment("EDITOR")))
	if len(command) == 0 {
		return usage("--edit opens an editor: set VISUAL or EDITOR, for example EDITOR=vi")
	}
	if !l.c.Bool("yes") && !l.c.Bool("dry-run") {
		if err := l.canAsk(); err != nil {
			return err
		}
	}
	letter, err := l.theLetter(ctx)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "millpond-edit-")
	if err != nil {
		return err
	}
	file := filepath.Join(folder, "letter.txt")
	keep, err := l.editAndReplay(ctx, letter, command, file)
	if keep {
		fmt.Fprintf(l.err, "millpond: the edited letter is in the file %s\n", file)
		return err
	}
	return errors.Join(err, os.RemoveAll(folder))
}

// theLetter returns the one letter that the filter chooses.
func (l *letters) theLetter(ctx context.Context) (found operate.Letter, err error) {
	c, id, n := l.c, l.c.String("edit"), 0
	for letter, err := range l.operator.Dead(ctx, l.plan, l.filter, 2) {
		if err != nil {
			return found, err
		}
		if n++; n == 1 {
			found = letter
		}
	}
	switch {
	case n == 0:
		return found, notFound("there is no letter %q in queue %q", id, l.plan.Dead.RoutingKey)
	case n > 1:
		return found, usage("more than one letter has the ID %q: name one by its position, as in "+
			"--edit '#%d'", id, found.Position)
	case c.String("to") == "" && found.Queue != "" && found.Queue != l.plan.Queue:
		return found, usage("letter %q belongs to queue %q: name that queue, or where the letter goes "+
			"with --to", id, found.Queue)
	}
	return found, nil
}

// editAndReplay returns keep where an edit was confirmed and not published.
func (l *letters) editAndReplay(
	ctx context.Context, letter operate.Letter, command []string, file string,
) (keep bool, err error) {
	c := l.c
	before, fixed := lettertext.Of(letter.Delivery.Headers, letter.Delivery.Body)
	after, err := l.edit(ctx, letter, before, fixed, command, file, c.Bool(flagNotJSON))
	if err != nil {
		return false, err
	}
	if err := l.difference(letter, before, after); err != nil {
		return false, err
	}
	if c.Bool("dry-run") {
		_, err = fmt.Fprintln(l.out, "would have replayed 1 edited dead letter; nothing was changed")
		return false, err
	}
	err = l.ask(c, "nothing was changed", "Replay the edited letter to queue %q and keep the "+
		"original in queue %q?", cmp.Or(c.String("to"), l.plan.Queue), l.originals())
	if err != nil {
		return false, err
	}
	want, key := lettertext.Identity(letter.Delivery), operate.KeyOf(letter)
	options := operate.MoveOptions{
		Filter: operate.Filter{Match: func(other operate.Letter) bool {
			return lettertext.Identity(other.Delivery) == want
		}},
		To: c.String("to"), Limit: 1, EditedBy: byOf(c),
		Edit: func(_ operate.Letter, msg *amqp.Publishing) error {
			after.Put(msg)
			return nil
		},
	}
	var p operate.Progress
	err = l.audited(c, l.plan.Queue, &options.Filter, func(e *auditlog.Entry) (err error) {
		if key != "" && l.plan.Line != "" && options.To == "" { // the letter keeps its place
			p, err = l.operator.ReplayKey(ctx, l.plan, key, options)
		} else {
			p, err = l.operator.Replay(ctx, l.plan, options)
		}
		e.Count, e.Done = 1, p.Done
		if err == nil && p.Done == 0 {
			err = notFound("letter %q is no longer there as it was: list queue %q again", letter.ID,
				l.from())
		}
		return err
	})
	code := l.report(l.plan.Queue, "replayed", deadLetter, p, err)
	if p.Done > 0 {
		l.kept()
	}
	return err != nil, code
}

const editHelp = `# %s of queue %q. Change headers and payload, save, and leave the
# editor. An empty or unchanged file cancels. Lines above the payload that begin with # are ignored.
# A header is NAME TYPE VALUE. Types: string and table, array as JSON; bool; int8 to int64; uint8
# to uint32; float32, float64; bytes as base64; timestamp; decimal; void.
`

// edit opens the editor until the file can be read. An empty or unchanged file is errRefused.
func (a app) edit(
	ctx context.Context, letter operate.Letter, before lettertext.Content, fixed amqp.Table,
	command []string, file string, notJSON bool,
) (lettertext.Content, error) {
	fixedLines, err := lettertext.HeaderLines(fixed)
	if err != nil {
		return before, err
	}
	unchanged, err := before.Text()
	if err != nil {
		return before, err
	}
	help := fmt.Sprintf(editHelp, fmt.Sprintf("Letter %q", letter.ID), letter.Queue)
	if strings.Contains(unchanged, "\n"+lettertext.AsBase64+"\n") {
		help += "# The payload is not text, so it is written in base64.\n"
	}
	if len(fixedLines) > 0 {
		help += "# Headers of the library and the broker, which cannot be edited:\n"
	}
	for _, line := range fixedLines {
		help += "#   " + oneLine(line) + "\n"
	}
	text, mark := help+"\n"+unchanged, ""
	for {
		if err := os.WriteFile(file, []byte(mark+text), 0o600); err != nil {
			return before, err
		}
		if err := a.runEditor(command, file); err != nil {
			return before, err
		}
		if ctx.Err() != nil {
			return before, context.Cause(ctx)
		}
		read, err := os.ReadFile(file)
		if err != nil {
			return before, err
		}
		edited := strings.TrimPrefix(string(read), mark)
		if strings.TrimSpace(edited) == "" || edited == text {
			if mark != "" {
				return before, fmt.Errorf("%w: the edit was cancelled, nothing was changed: %s",
					errRefused, strings.TrimSpace(strings.TrimPrefix(mark, "# ERROR: ")))
			}
			return before, fmt.Errorf("%w: the edit was cancelled, nothing was changed", errRefused)
		}
		after, err := lettertext.Parse(edited, before, notJSON)
		if errors.Is(err, lettertext.ErrNoJSON) {
			err = fmt.Errorf("%w; to replay it all the same, edit it with --%s", err, flagNotJSON)
		}
		if err == nil {
			now, err := after.Text()
			if err == nil && now == unchanged && bytes.Equal(after.Body, before.Body) {
				return before, fmt.Errorf("%w: the edit changes nothing", errRefused)
			}
			return after, nil
		}
		text, mark = edited, "# ERROR: "+harmless(err.Error())+"\n"
		fmt.Fprintf(a.err, "millpond: the editor opens again: %s\n", harmless(err.Error()))
	}
}

// runEditor runs an editor on the terminal, if there is one.
func (a app) runEditor(command []string, file string) error {
	run := exec.Command(command[0], append(command[1:len(command):len(command)], file)...)
	if in, is := a.in.(*os.File); is {
		run.Stdin = in
	}
	run.Stdout, run.Stderr = a.err, a.err
	if out, is := a.out.(*os.File); is && a.terminal(out) {
		run.Stdout = out
	}
	if err := run.Run(); err != nil {
		return fmt.Errorf("%w: the editor %q ended with an error, nothing was changed: %w",
			errRefused, command[0], err)
	}
	return nil
}
