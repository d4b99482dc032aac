package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/topology/operate"
)

// auditFile is where the audit log is; empty without --audit and a home folder.
func (a app) auditFile(c *cli.Command) string {
	home := a.stateHome()
	if name := c.String(flagAudit); name != "" || home == "" {
		return name
	}
	return filepath.Join(home, "audit.jsonl")
}

// audited does a part of a command that acts, and notes in the audit log when it begins and how it
// ends. chosen is the filter that do uses; do counts the messages in the entry, and notes an Error
// there that the command reports by its exit code alone. If the log was named and cannot be
// written, nothing is done.
func (a app) audited(
	c *cli.Command, queue string, chosen *operate.Filter, do func(e *auditlog.Entry) error,
) error {
	name, command := a.auditFile(c), strings.TrimPrefix(c.FullName(), "millpond ")
	filter, _, _ := filterOf(c, time.Now()) // was read before
	e := auditlog.Entry{
		Event: "started", Who: byOf(c), Action: auditlog.NewID(), Kind: command, Queue: queue,
		What: doing(c, command), Filter: filter.Redacted(),
	}
	if name == "" || c.Bool("dry-run") {
		return do(&e)
	}
	log, err := auditlog.Open(name)
	if err == nil {
		defer func() { _ = log.Close() }() // each line is durable
		err = log.Append(e)
	}
	switch {
	case err != nil && c.IsSet(flagAudit):
		return fmt.Errorf("%w: the audit log cannot be written, so nothing was done: %w", errRefused, err)
	case err != nil:
		fmt.Fprintf(a.err, "millpond: the audit log cannot be written, name another with --%s: %v\n",
			flagAudit, err)
		return do(&e)
	}
	cause := ""
	*chosen = overview.Caused(*chosen, &cause)
	err = do(&e)
	e.Event, e.Error = "done", cmp.Or(errorText(err), e.Error)
	switch {
	case errors.Is(err, operate.ErrStopped), errors.Is(err, operate.ErrUnsettled):
		e.Event = "stopped"
	case e.Error != "":
		e.Event = "failed"
	}
	if cause != "" {
		e.Filter = overview.Chosen(filter, cause)
	}
	return errors.Join(err, log.Append(e))
}

// doing is a command with its arguments and the flags that say more than which messages it means.
// Payloads, keys and values of headers are left out.
func doing(c *cli.Command, command string) string {
	words := []string{command}
	for i, arg := range c.Args().Slice() {
		if arg = audit.ShellWord(arg); i > 0 && strings.HasPrefix(command, "order ") {
			arg = "…" // a key, which the page may mask
		}
		words = append(words, arg)
	}
	for _, name := range []string{"edit", "mark", "to", "for", "cause", "limit", "canary", "file"} {
		if c.IsSet(name) {
			words = append(words, "--"+name, audit.ShellWord(fmt.Sprint(c.Value(name))))
		}
	}
	for _, name := range []string{"set-header", "unset-header", "patch"} {
		if c.IsSet(name) {
			words = append(words, "--"+name, "…")
		}
	}
	return strings.Join(words, " ")
}

func (a app) auditLog() *cli.Command {
	return &cli.Command{
		Name: "audit", Usage: "who did what with the tool and the page, to how many messages, and how " +
			"it ended; the newest last",
		Description: "It reads the file that --audit names. With --json one object a line: an action " +
			"has one when it\nbegins and one when it ends.",
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: "since", Usage: "begun at this `TIME` or later: 2026-03-01T12:00:00Z, or 2h for two " +
					"hours ago",
			},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			name := a.auditFile(c)
			if c.NArg() > 0 || name == "" {
				return usage("%s takes no arguments; name its file with --%s", c.FullName(), flagAudit)
			}
			filter, _, err := filterOf(c, time.Now())
			if err != nil {
				return err
			}
			entries, err := auditlog.Read(name)
			if errors.Is(err, os.ErrNotExist) {
				return notFound("no action is noted yet: there is no file %s", name)
			}
			before := map[string]bool{} // actions that began before
			entries = slices.DeleteFunc(entries, func(e auditlog.Entry) bool {
				before[e.Action] = before[e.Action] || e.At.Before(filter.Since)
				return before[e.Action]
			})
			if c.Bool(flagJSON) {
				for _, e := range entries {
					err = errors.Join(err, a.printLine(e))
				}
				return err
			}
			a.printAudit(entries)
			fmt.Fprintf(a.err, "millpond: these are all that was noted in the file %s; --%s names another\n",
				harmless(name), flagAudit)
			return err
		},
	}
}

// noneChosen ends What of an entry that is not printed: the command has chosen no message of this
// queue, and acted on others.
const noneChosen = "; no message was chosen"

// printAudit writes each action once, in lines of at most a hundred columns. JSON has all.
func (a app) printAudit(entries []auditlog.Entry) {
	last, stopped := map[string]auditlog.Entry{}, map[string]string{}
	for _, e := range entries {
		if last[e.Action] = e; e.Event == "stop" {
			stopped[e.Action] = "; stopped by " + e.Who
		}
	}
	for _, e := range entries {
		end, there := last[e.Action]
		if !there {
			continue // its first line was printed
		}
		delete(last, e.Action)
		if strings.HasSuffix(end.What, noneChosen) {
			continue
		}
		outcome := end.Event
		if outcome == "started" {
			outcome = "no end is noted"
		}
		if n := max(end.Count, end.Done); n > 0 {
			outcome += fmt.Sprintf(": %d of %d", end.Done, n)
		}
		fmt.Fprintf(a.out, "%s  %.40s  %s\n", when(e.At), harmless(e.Who), outcome)
		text := end.What
		if !strings.Contains(text, end.Queue) {
			text += ", queue " + end.Queue
		}
		if !strings.Contains(text, end.Filter) {
			text += ", " + end.Filter
		}
		for _, more := range []string{text + stopped[e.Action], end.Error, end.Export} {
			if line := []rune(harmless(more)); len(line) > 96 {
				more = string(line[:95]) + "…"
			}
			if more != "" {
				fmt.Fprintf(a.out, "    %s\n", harmless(more))
			}
		}
	}
}
