package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// planting replaces a passage of one file of the library. The passage must be there once.
type planting struct{ file, old, new string }

// bug is a mistake in the library that the judge must find. The instances run a program that is
// built with it by `go build -overlay`, so that the checkout stays as it is.
type bug struct {
	name      string
	plantings []planting
	found     string // is in a problem of the run; any problem will do if it is empty
	block     bool   // dead letters must block their keys
}

// inversions is the problem of a run that most bugs cause.
const inversions = "inversions"

// leastDead is the least share of dead letters, of a thousand messages, if they block their keys.
const leastDead = 10

// config returns the configuration in which the bug can be found.
func (b bug) config(c config) config {
	if b.block {
		c.Block, c.Dead = true, max(c.Dead, leastDead)
	}
	return c
}

const (
	handOverFile = "internal/consumer/handover.go"
	fromLineFile = "internal/inorder/reading.go"
	behindFile   = "internal/inorder/copies.go"
	lineFile     = "internal/order/line.go"
	laneFile     = "internal/order/keylane.go"
	replayFile   = "topology/operate/orderedreplay.go"
)

var bugs = []bug{
	{
		// A new message of a key is handled while messages of the key are in the line.
		name: "overtake", found: inversions,
		plantings: []planting{{
			file: laneFile,
			old:  "inLine := len(a.waiting) > 0 || a.handling != nil\n",
			new:  "inLine := false\n",
		}},
	},
	{
		// A process that takes over begins before it has read the line.
		name: "blind-takeover", found: inversions,
		plantings: []planting{{
			file: fromLineFile,
			old:  "\tkey, _ := a.Raw.Headers[keys.Key].(string)\n\tl.mu.Lock()\n\tdefer",
			new: "\tif note.ID.Epoch != l.epoch.Load() && time.Since(a.At) < time.Second {\n" +
				"\t\ttime.AfterFunc(time.Second, func() {\n\t\t\tl.waits(a, note, due)\n" +
				"\t\t\tselect {\n\t\t\tcase l.changed <- struct{}{}:\n\t\t\tdefault:\n\t\t\t}\n" +
				"\t\t})\n\t\treturn\n\t}\n" +
				"\tkey, _ := a.Raw.Headers[keys.Key].(string)\n\tl.mu.Lock()\n\tdefer",
		}},
	},
	{
		// A copy does not keep the number of its message.
		name: "number-lost", found: inversions,
		plantings: []planting{{
			file: behindFile,
			old:  "order.Note{Kind: kind, Seq: t.Seq, ID: t.ID, First: t.First}",
			new:  "order.Note{Kind: kind, ID: t.ID, First: t.First}",
		}},
	},
	{
		// A key goes on while a copy of its message is on its way to the line and back.
		name: "empty-too-early", found: inversions,
		plantings: []planting{{
			file: lineFile,
			old:  "\t\ta.insert(entry[T]{Waiting: Waiting[T]{Key: a.key, Seq: s.Seq, ID: s.ID}})\n",
			new:  "",
		}},
	},
	{
		// An edited letter loses its key and its number on its way back to its place. The number alone
		// does no harm: a message of the line without one is the first of its key.
		name: "edit-loses-place", found: "dead letter of their key", block: true,
		plantings: []planting{{
			file: replayFile,
			old:  "if err != nil || !toLine {",
			new:  "if err != nil || !toLine || edited {",
		}},
	},
	{
		// A copy is published a moment after the ack of its message.
		name: "ack-early", // messages are lost, and overtaken
		plantings: []planting{{
			file: handOverFile,
			old:  "\terr := d.send(ctx, route, msg, alone)\n",
			new: "\td.ack()\n\ttime.Sleep(50 * time.Millisecond)\n" +
				"\terr := d.send(ctx, route, msg, alone)\n",
		}, { // the broker ends a channel that acks twice
			file: "internal/consumer/delivery.go",
			old:  "\tif d.life.settle() == rejected {\n",
			new:  "\tif d.life.phase() >= acked {\n\t\treturn\n\t}\n\tif d.life.settle() == rejected {\n",
		}},
	},
}

func bugNames() string {
	var all []string
	for _, b := range bugs {
		all = append(all, b.name)
	}
	return strings.Join(all, ", ")
}

func bugNamed(name string) (bug, error) {
	for _, b := range bugs {
		if b.name == name {
			return b, nil
		}
	}
	return bug{}, fmt.Errorf("bug %q is unknown: use one of %s", name, bugNames())
}

// mostSeeds is the number of runs in which a bug must be found.
const mostSeeds = 3

// findBugs does runs with each bug, each with another seed, until the judge finds it. It reports
// whether all were found.
func findBugs(ctx context.Context, c config) (all bool, err error) {
	all = true
	for _, b := range bugs {
		found, err := b.find(ctx, c)
		if err != nil {
			return false, fmt.Errorf("bug %s: %w", b.name, err)
		}
		all = all && found
	}
	return all, nil
}

func (b bug) find(ctx context.Context, c config) (found bool, err error) {
	out := c.Out
	program, remove, err := b.plant(ctx)
	if err != nil {
		return false, err
	}
	c = b.config(c)
	c.Program, c.Once = program, true
	defer func() { err = errors.Join(err, remove()) }()
	if !c.Verbose {
		c.Out = io.Discard
	}
	for range mostSeeds {
		r, err := do(ctx, c)
		if r.Kept != "" {
			err = errors.Join(err, os.RemoveAll(r.Kept))
		}
		if err != nil {
			return false, err
		}
		for _, problem := range r.problems() {
			if strings.Contains(problem, b.found) {
				fmt.Fprintf(out, "%-18s found with seed %d: %.100s\n", b.name, c.Seed, problem)
				return true, nil
			}
		}
		c.Seed++
	}
	fmt.Fprintf(out, "%-18s NOT FOUND in %d runs\n", b.name, mostSeeds)
	return false, nil
}

// plant builds this program with the bug, and returns its file.
func (b bug) plant(ctx context.Context) (program string, remove func() error, err error) {
	dir, err := os.MkdirTemp("", "millpond-order-bug-")
	if err != nil {
		return "", nil, err
	}
	remove = func() error { return os.RemoveAll(dir) }
	if program, err = build(ctx, dir, b.plantings); err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return program, remove, nil
}

func build(ctx context.Context, dir string, plantings []planting) (string, error) {
	found, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/millpond-go/millpond").Output()
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	root := strings.TrimSpace(string(found))
	replaced := map[string]string{}
	for i, p := range plantings {
		file := filepath.Join(root, filepath.FromSlash(p.file))
		source, err := os.ReadFile(cmp.Or(replaced[file], file))
		if err != nil {
			return "", err
		}
		if count := strings.Count(string(source), p.old); count != 1 {
			return "", fmt.Errorf("%s has %d times the passage %q: want it once", p.file, count, p.old)
		}
		changed := filepath.Join(dir, fmt.Sprint(i, ".go"))
		text := strings.Replace(string(source), p.old, p.new, 1)
		if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
			return "", err
		}
		replaced[file] = changed
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	list, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "instance")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", list, "-o", program,
		"./internal/testing/inorder")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build with the bug: %w\n%s", err, out)
	}
	return program, nil
}
