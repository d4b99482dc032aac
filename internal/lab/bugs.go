package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// planting replaces a passage of one file of the library. The passage must be there once.
type planting struct{ file, old, new string }

// bug is a mistake in the library that the judge must find. A second lab is built with it by
// `go build -overlay`, so that the checkout stays as it is.
type bug struct {
	name, scenario string
	plantings      []planting
	found          string   // is in the output of the run
	args           []string // of the run
}

const (
	handOverFile = "internal/consumer/handover.go"
	anInversion  = " inversions"
	someAreLost  = "of the confirmed messages are lost"
)

// quickly are the arguments of a run of chaos in which a mistake shows soon.
var quickly = []string{"-strategy", "perqueue", "-queues", "0", "-timer", "10s"}

var bugs = []bug{
	{
		// A copy is published a moment after the ack of its message.
		name: "ack-early", scenario: "chaos", found: someAreLost, args: quickly,
		plantings: ackEarly,
	},
	{
		// A message is nacked with requeue when it cannot be handed over at once, instead of being
		// held. A quorum queue of 4.0 drops it after twenty nacks (F2); 3.10 has no such limit, and 4.3
		// does not count nacks.
		name: "hard-nack", scenario: "chaos", found: someAreLost, args: quickly,
		plantings: []planting{{
			file: "topology/client.go",
			old:  "\treturn c.group.Republish(ctx, msg, delay, state)\n",
			new: "\tdone, err := middleware.Republished{}, c.Healthy()\n\tif err == nil {\n" +
				"\t\twithin, cancel := context.WithTimeout(ctx, 500*time.Millisecond)\n" +
				"\t\tdefer cancel()\n\t\tdone, err = c.group.Republish(within, msg, delay, state)\n\t}\n" +
				"\tif err != nil {\n\t\terr = errors.Join(middleware.ErrNotDelivered, err)\n\t}\n" +
				"\treturn done, err\n",
		}, {
			file: "topology/subscriber.go", old: "OldInstances: o.oldInstances,",
			new: "OldInstances: true,",
		}, {
			file: "internal/consumer/contract.go", old: "c.OldInstances && len(c.Retries) == 0", new: "true",
		}},
	},
	{
		// A message that expires while the leader dies is lost (F18).
		name: "at-most-once", scenario: "chaos", found: someAreLost, args: quickly,
		plantings: []planting{{
			file: "topology/arguments.go",
			old: "\t\targs[\"x-dead-letter-strategy\"] = \"at-least-once\"\n" +
				"\t\targs[\"x-overflow\"] = \"reject-publish\"\n",
			new: "\t\targs[\"x-dead-letter-strategy\"] = \"at-most-once\"\n",
		}},
	},
	{
		// The copy for the second attempt is published twice, both confirmed.
		name: "publish-twice", scenario: "chaos", found: "more often than its faults explain",
		args: quickly,
		plantings: []planting{{
			file: handOverFile,
			old:  "\terr = d.publish(ctx, &route, msg, false)\n",
			new: "\terr = d.publish(ctx, &route, msg, false)\n\tif err == nil && state.Failures == 1 {\n" +
				"\t\terr = d.publish(ctx, &route, msg, false)\n\t}\n",
		}},
	},
	{
		// A message that was held keeps its place for good: handlers are free, and get nothing.
		name: "place-kept", scenario: "chaos", found: "ready messages stood still",
		args: append(slices.Clone(quickly), "-nodes", "1", "-bound", "10s", "-only",
			"kill node,raise alarm"),
		plantings: []planting{{
			file: "internal/consumer/places.go",
			old:  "\t\tp.calm = time.Now()\n\t\tp.free()\n", new: "\t\tp.calm = time.Now()\n",
		}},
	},
	{
		// A new message of a key is handled while messages of the key are in the line.
		name: "overtake", scenario: "keys", found: anInversion,
		plantings: []planting{{
			file: "internal/order/keylane.go",
			old:  "inLine := len(a.waiting) > 0 || a.handling != nil\n",
			new:  "inLine := false\n",
		}},
	},
	{
		// A process that takes over begins before it has read the line.
		name: "blind-takeover", scenario: "keys", found: anInversion,
		plantings: []planting{{
			file: "internal/inorder/reading.go",
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
		name: "number-lost", scenario: "keys", found: anInversion,
		plantings: []planting{{
			file: "internal/inorder/copies.go",
			old:  "order.Note{Kind: kind, Seq: t.Seq, ID: t.ID, First: t.First}",
			new:  "order.Note{Kind: kind, ID: t.ID, First: t.First}",
		}},
	},
	{
		// A key goes on while a copy of its message is on its way to the line and back.
		name: "empty-too-early", scenario: "keys", found: anInversion,
		plantings: []planting{{
			file: "internal/order/line.go",
			old:  "\t\ta.insert(entry[T]{Waiting: Waiting[T]{Key: a.key, Seq: s.Seq, ID: s.ID}})\n",
			new:  "",
		}},
	},
	{
		// An edited letter goes to the queue, and its key is released as if it were in its place.
		name: "edit-loses-place", scenario: "keys", found: "dead letter of their key",
		args: []string{"-block"},
		plantings: []planting{{
			file: "topology/operate/orderedreplay.go",
			old:  "if err != nil || !k.isMark(l) {",
			new:  "if k.blocked = c.edited && k.isMark(l); k.blocked || err != nil || !k.isMark(l) {",
		}},
	},
	{
		name: "ack-early-in-order", scenario: "keys", found: "FAILED", // messages are lost, and overtaken
		plantings: ackEarly,
	},
}

var ackEarly = []planting{{
	file: handOverFile,
	old:  "\terr := d.send(ctx, route, msg, alone)\n",
	new: "\td.ack()\n\ttime.Sleep(100 * time.Millisecond)\n" +
		"\terr := d.send(ctx, route, msg, alone)\n",
}, { // the broker ends a channel that acks twice
	file: "internal/consumer/delivery.go",
	old:  "\tif d.life.settle() == rejected {\n",
	new:  "\tif d.life.phase() >= acked {\n\t\treturn\n\t}\n\tif d.life.settle() == rejected {\n",
}}

// mostSeeds is the number of runs in which a bug must be found.
const mostSeeds = 3

// findBugs does runs with the bugs of a scenario, or with the named one, each with another seed,
// until the judge finds it. The report has those that it has not found.
func findBugs(
	ctx context.Context, name, scenario string, s settings, args []string,
) (*report, error) {
	rep := &report{}
	for _, b := range bugs {
		if b.scenario != scenario || name != "all" && name != b.name {
			continue
		}
		found, err := b.find(ctx, s, args)
		if err != nil {
			return nil, fmt.Errorf("bug %s: %w", b.name, err)
		}
		if rep.row(b.name, "%s", found); found == "" {
			rep.problem("bug is not found", b.name)
		}
	}
	if len(rep.rows) == 0 {
		return nil, fmt.Errorf("%s has no bug %q", scenario, name)
	}
	return rep, nil
}

func (b bug) find(ctx context.Context, s settings, args []string) (found string, err error) {
	dir, err := os.MkdirTemp("", "millpond-lab-bug-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program, err := b.plant(ctx, dir)
	if err != nil {
		return "", err
	}
	for seed := s.Seed; seed < s.Seed+mostSeeds; seed++ {
		cmd := exec.CommandContext(ctx, program, // the last flag of a name counts
			slices.Concat(args, b.args, []string{"-bug", "", "-once", "-seed", fmt.Sprint(seed)})...)
		cmd.Env = append(os.Environ(), "TMPDIR="+dir)
		text, _ := cmd.CombinedOutput() // a run with a problem fails
		if s.Verbose {
			_, _ = s.Out.Write(text)
		}
		if cmd.ProcessState.ExitCode() == 2 {
			return "", fmt.Errorf("the run could not be done: %s", text)
		}
		_, problems, _ := strings.Cut(string(text), failedMark)
		if problem, _, ok := strings.Cut(problems, "\n\n"); ok && strings.Contains(failedMark+problem,
			b.found) {
			return fmt.Sprintf("found with seed %d: %.160q", seed, problem), nil
		}
	}
	return "", nil
}

// plant builds this program with the bug, and returns its file. The working folder is the root of
// the checkout.
func (b bug) plant(ctx context.Context, dir string) (string, error) {
	replaced := map[string]string{}
	for i, p := range b.plantings {
		source, err := os.ReadFile(cmp.Or(replaced[p.file], p.file))
		if err != nil {
			return "", err
		}
		if count := strings.Count(string(source), p.old); count != 1 {
			return "", fmt.Errorf("%s has %d times the passage %q: want it once", p.file, count, p.old)
		}
		replaced[p.file] = filepath.Join(dir, fmt.Sprint(i, ".go"))
		text := strings.Replace(string(source), p.old, p.new, 1)
		if err := os.WriteFile(replaced[p.file], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	list, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "lab")
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err == nil {
		err = os.WriteFile(list, overlay, 0o600)
	}
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", list, "-o", program, "./internal/lab")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build with the bug: %w\n%s", err, out)
	}
	return program, nil
}
