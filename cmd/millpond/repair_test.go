package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/operate"
)

// editWith runs the tool with an editor, a shell script that gets the file as $1, on a terminal on
// which a person types the answer.
func (s *service) editWith(script, answer string, args ...string) outcome {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "editor")
	require.NoError(s.t, os.WriteFile(file, []byte("#!/bin/sh\nset -e\n"+script+"\n"), 0o700))
	var out, errs bytes.Buffer
	args = append([]string{"millpond", "--url", s.url, "--type", s.kind, "--no-policies"}, args...)
	code := run(s.t.Context(), args, stdio{
		in: strings.NewReader(answer), out: &out, err: &errs,
		terminal: func(file any) bool { return answer != "" && file != any(&out) && file != any(&errs) },
		environment: func(name string) string {
			return map[string]string{"EDITOR": "false", "VISUAL": file}[name]
		},
	})
	return outcome{out.String(), errs.String(), code}
}

// take takes the messages out of a queue, of which there are n.
func (s *service) take(queue string, n int) []amqp.Delivery {
	s.t.Helper()
	taken := rig.Drain(s.t, s.url, queue, n)
	require.Len(s.t, taken, n)
	return taken
}

// everyType has a header of each type that AMQP knows.
func everyType() amqp.Table {
	return amqp.Table{
		"bool": true, "int8": int8(-8), "int16": int16(-16), "int32": int32(-32),
		"int64": int64(math.MaxInt64), "uint8": uint8(8), "uint16": uint16(16), "uint32": uint32(32),
		"float32": float32(1.5), "float64": 1e300, "void": nil,
		"decimal": amqp.Decimal{Scale: 2, Value: 314}, "string": "a <b> & \x1b[31m\u202e", "empty": "",
		"not utf-8": "\xff\xfe", "bytes": []byte{0, 1, 255}, "no bytes": []byte{},
		"time": time.Unix(1767268800, 0), "far": time.Unix(1<<40, 0),
		"table": amqp.Table{"n": int64(1), "deep": amqp.Table{"t": time.Unix(5, 0)}},
		"array": []any{"x", int32(1), []any{nil, true}}, "# odd: name\n": "x",
	}
}

// One header and the payload are edited: the rest keeps bytes and types, the change is noted, and
// the original is kept.
func TestEditChangesOneLetter(t *testing.T) { eachKind(t, editChangesOneLetter) }

func editChangesOneLetter(t *testing.T, s *service) {
	testbroker.Delete(t, s.queue+".dlq.originals")
	s.die()
	notes := header.RetryState{
		Failures: 3, Reason: header.ReasonPermanent, Error: "total \x1b]0;evil\a is \u202eno number",
	}
	const body = `{"id":12345678901234567890,"total":1e2,"note":"a <b> é` + "\u202e" + `"}`
	s.publish(s.queue+".dlq", shop.Dead(s.queue, notes, amqp.Publishing{
		MessageId: "broken", Headers: everyType(), Body: []byte(body), ContentType: "application/json",
	}))
	rig.AwaitDepth(t, s.url, s.queue+".dlq", 4)
	shown := filepath.Join(t.TempDir(), "shown")
	script := `cp "$1" ` + shown + `
sed -i 's/^int64 int64 .*/int64 int64 7/; s/"total": 1e2/"total": 100/' "$1"`

	o := s.editWith(script, "n\n", "dead", "replay", s.queue, "--edit", "broken")
	require.Equal(t, exitRefused, o.code, o.err)
	require.Contains(t, o.err, "nothing was changed")
	o = s.editWith(script, "", "dead", "replay", s.queue, "--edit", "broken", "--dry-run")
	require.Equal(t, exitDone, o.code, o.err)
	require.Equal(t, 4, testbroker.Depth(t, s.url, s.queue+".dlq"))

	o = s.editWith(script, "y\n", "dead", "replay", s.queue, "--edit", "#4")
	require.Equal(t, exitDone, o.code, o.err)
	originals := s.queue + ".dlq.originals"
	require.Equal(t, "replayed 1 dead letter of 4\nthe letters as they were are in queue "+originals+
		": millpond dead list '"+s.queue+"' --dlq '"+originals+"'\n", o.out)
	for _, line := range []string{
		"int64 int64 [-9223372036854775807-]{+7+}", `  "total": [-1e2-]{+100+},`,
		"Replay the edited letter to queue ", `and keep the original in queue "` + originals + `"? `,
	} {
		require.Contains(t, o.err, line)
	}
	text, err := os.ReadFile(shown)
	require.NoError(t, err)
	for _, said := range []string{string(text), o.err} {
		require.NotContains(t, said, "\x1b")
		require.NotContains(t, said, "\u202e")
	}
	require.Contains(t, string(text), "#   millpond-dead-reason string \"permanent\"\n")
	require.Contains(t, string(text), "\ntime timestamp 2026-01-01T12:00:00Z\n")
	require.Contains(t, string(text), "\nfloat32 float32 1.5\n")

	moved := s.take(s.queue, 1)[0]
	want := everyType()
	want["int64"] = int64(7)
	for key, value := range want {
		require.Equal(t, value, moved.Headers[key], key)
	}
	require.Equal(t, strings.Replace(body, "1e2", "100", 1),
		strings.ReplaceAll(string(moved.Body), `\u202e`, "\u202e"))
	require.Equal(t, editor(), moved.Headers[header.EditedBy])
	at, err := time.Parse(time.RFC3339Nano, moved.Headers[header.EditedAt].(string))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), at, patience)
	require.Equal(t, "1", moved.Headers[header.Replays])
	require.Contains(t, s.tool("dead", "list", s.queue, "--dlq", originals).out, " broken ")
	original := s.take(originals, 1)[0]
	require.Equal(t, body, string(original.Body))
	require.Equal(t, int64(math.MaxInt64), original.Headers["int64"])
	require.Equal(t, 3, testbroker.Depth(t, s.url, s.queue+".dlq"))
}

// A payload that is not text is edited as base64; unchanged, it keeps its bytes.
func TestEditOfABinaryPayload(t *testing.T) {
	t.Parallel()
	s := newService(t, "classic")
	testbroker.Delete(t, s.queue+".dlq.originals")
	s.die()
	o := s.editWith(`grep -q 'written in base64' "$1"
sed -i 's/^tenant int32 2/tenant uint8 9/' "$1"`,
		"", "dead", "replay", s.queue, "--edit", "order-2", "--yes")
	require.Equal(t, exitDone, o.code, o.err)
	moved := s.take(s.queue, 1)[0]
	require.Equal(t, []byte{0, 1, 2, 0xff}, moved.Body)
	require.Equal(t, uint8(9), moved.Headers["tenant"])
	require.Equal(t, "\x1b[31mred", moved.Headers["escape"])
	o = s.editWith(`sed -i 's/payload as json:/payload as base64:/; s/^{$/AAEC/; s/^  "order": 1$//; `+
		`s/^}$/\/w==/' "$1"`, "", "dead", "replay", s.queue, "--edit", "order-1", "--yes", "--not-json")
	require.Equal(t, exitDone, o.code, o.err)
	require.Equal(t, []byte{0, 1, 2, 0xff}, s.take(s.queue, 1)[0].Body)
}

// An empty, an unchanged or a broken file, an editor that fails and a letter that is gone change
// nothing. A broken file is opened again, with the error at its top.
func TestEditThatIsCancelledChangesNothing(t *testing.T) {
	t.Parallel()
	s := newService(t, "classic")
	testbroker.Delete(t, s.queue+".dlq.originals")
	s.die()
	for name, c := range map[string]struct{ script, says string }{
		"empty":     {`: >"$1"`, "cancelled"},
		"unchanged": {`touch "$1"`, "cancelled"},
		"same meaning": {
			`sed -i 's/# Letter.*/# A comment/' "$1"`, "changes nothing",
		},
		"failed editor": {`exit 3`, "ended with an error"},
		"no JSON":       {`sed -i 's/"order": 0/"order": /' "$1"`, "it is no JSON: in its line 3"},
		"another form":  {`sed -i 's/as json:/as text:/; s/"order": 0/"order":/' "$1"`, "--not-json"},
		"no type":       {`sed -i 's/^tenant int32 /tenant int99 /' "$1"`, "no value of type int99"},
		"too large":     {`sed -i 's/^tenant int32 0/tenant int8 300/' "$1"`, "no value of type int8"},
		"own header": {
			`sed -i 's/^tenant int32 0/millpond-replays string "9"/' "$1"`, "belongs to the library",
		},
		"twice": {`grep -q ERROR "$1" || sed -i 's/^tenant .*/&\n&/' "$1"`, `"tenant" is there twice`},
		"no payload": {
			`sed -i '/^payload as/,$d' "$1"`, "is missing above the payload",
		},
	} {
		o := s.editWith(c.script, "", "dead", "replay", s.queue, "--edit", "order-0", "--yes")
		require.Equal(t, exitRefused, o.code, "%s: %s", name, o.err)
		require.Contains(t, o.err, c.says, name)
		require.Empty(t, o.out, name)
		broken := !strings.HasPrefix(c.says, "c") && !strings.HasPrefix(c.says, "ended")
		require.Equal(t, broken, strings.Contains(o.err, "millpond: the editor opens again: "), name)
	}
	require.Equal(t, 3, testbroker.Depth(t, s.url, s.queue+".dlq"))

	o := s.tool("dead", "replay", s.queue, "--edit", "order-0", "--yes")
	require.Equal(t, exitUsage, o.code)
	require.Contains(t, o.err, "set VISUAL or EDITOR")

	// At first the file is broken, then it is mended.
	o = s.editWith(`if grep -q '^# ERROR: .*it is no JSON' "$1"
then sed -i 's/"order": nope/"order": 17/' "$1"
else sed -i 's/"order": 0/"order": nope/' "$1"
fi`, "", "dead", "replay", s.queue, "--edit", "order-0", "--yes")
	require.Equal(t, exitDone, o.code, o.err)
	require.Equal(t, `{"order":17}`, string(s.take(s.queue, 1)[0].Body))

	// While the editor is open, another person discards the letter.
	discard := "HOME= MILLPOND_TEST_TOOL=1 " + os.Args[0] + " --url " + s.url +
		" --type classic --no-policies dead discard " + s.queue + " --id order-1 --yes >/dev/null"
	o = s.editWith(discard+`
sed -i 's/"order": 1/"order": 18/' "$1"`,
		"", "dead", "replay", s.queue, "--edit", "order-1", "--yes")
	require.Equal(t, exitFound, o.code, o.err)
	require.Contains(t, o.err, "no longer there as it was")
	_, file, _ := strings.Cut(o.err, "the edited letter is in the file ")
	file, _, _ = strings.Cut(file, "\n")
	kept, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(kept), `"order": 18`)
	require.NoError(t, os.RemoveAll(filepath.Dir(file)))
	require.Equal(t, 1, testbroker.Depth(t, s.url, s.queue+".dlq"))
}

// Headers and payloads of many letters are changed after a rehearsal. A letter that does not fit
// stays, and is named.
func TestPatchChangesManyLetters(t *testing.T) { eachKind(t, patchChangesManyLetters) }

func patchChangesManyLetters(t *testing.T, s *service) {
	testbroker.Delete(t, s.queue+".dlq.originals")
	s.die()
	file := filepath.Join(t.TempDir(), "patch.json")
	patch := `[{"op":"add","path":"/note","value":"<x>"},
		{"op":"replace","path":"/order","value":1.50}]`
	require.NoError(t, os.WriteFile(file, []byte(patch), 0o600))
	args := []string{
		"dead", "replay", s.queue, "--all", "--patch", file, "--set-header", "attempts:int64=5",
		"--set-header", "by=me", "--set-header", "at:timestamp=2026-01-01T12:00:00Z",
		"--unset-header", "escape",
	}
	o := s.tool(args...)
	require.Equal(t, exitUsage, o.code, "there is no terminal to ask on")
	o = s.tool(append(args, "--dry-run")...)
	require.Contains(t, o.out, "would have replayed 2 dead letters of 3; nothing was changed\n")
	require.Contains(t, o.out, "1 letter: cannot be changed so")
	require.Contains(t, o.out, "has no consumer")
	require.Contains(t, o.err, "millpond: letter order-2 stays: it cannot be changed so: "+
		"its payload is no JSON\n")
	require.Contains(t, o.err, "{+attempts int64 5+}\n")
	o = s.editWith("", "no\n", args...)
	require.Equal(t, exitRefused, o.code, o.err)
	require.Equal(t, 3, testbroker.Depth(t, s.url, s.queue+".dlq"))

	o = s.editWith("", "y\n", args...)
	require.Equal(t, exitFailed, o.code, "one stays: %s", o.err)
	require.Contains(t, o.out, "replayed 2 dead letters of 3\n1 letter: cannot be changed so")
	require.Contains(t, o.out, "the letters as they were are in queue "+s.queue+".dlq.originals: ")
	require.Contains(t, o.err, `message "order-2" stays`)
	require.Contains(t, o.err, "2 of 2 letters would be changed; 1 letter would stay")
	for i, d := range s.take(s.queue, 2) {
		require.JSONEq(t, `{"order":1.50,"note":"<x>"}`, string(d.Body))
		require.Contains(t, string(d.Body), "1.50", "as it was written")
		require.Equal(t, int32(i), d.Headers["tenant"])
		require.Equal(t, int64(5), d.Headers["attempts"])
		require.Equal(t, time.Unix(1767268800, 0), d.Headers["at"])
		require.Equal(t, "me", d.Headers["by"])
		require.NotContains(t, d.Headers, "escape")
		require.Equal(t, editor(), d.Headers[header.EditedBy])
	}
	for i, d := range s.take(s.queue+".dlq.originals", 2) {
		require.Equal(t, fmt.Sprintf(`{"order":%d}`, i), string(d.Body))
	}
	o = s.tool("dead", "replay", s.queue, "--reason", "none", "--unset-header", "escape", "--yes")
	require.Equal(t, exitDone, o.code, o.err)
	require.Equal(t, "replayed 0 dead letters of 1\n", o.out)
	require.Equal(t, 1, testbroker.Depth(t, s.url, s.queue+".dlq"))
}

// A patch leaves alone the parts of a payload that it does not name.
func TestPatchKeepsNumbersAndOrder(t *testing.T) {
	t.Parallel()
	patch, err := patchOf(`[{"op":"replace","path":"/b/0/x","value":2}]`)
	require.NoError(t, err)
	m := changes{patch: patch}
	const before, after = `{"z":12345678901234567890.10,"b":[{"y":"<é>","x":1}],"a":1E400}`,
		`{"z":12345678901234567890.10,"b":[{"y":"<é>","x":2}],"a":1E400}`
	msg := amqp.Publishing{Body: []byte(before)}
	changed, err := m.make(&msg)
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, after, string(msg.Body))
	_, err = m.make(&amqp.Publishing{Body: []byte(`{"b":[]}`)})
	require.ErrorIs(t, err, errStays)
	_, err = m.make(&amqp.Publishing{Body: []byte(`7`)})
	require.ErrorIs(t, err, errStays)
}

// Given causes with control characters, then groups prints none of them, and its ID chooses the
// letters of one group.
func TestGroupsAreHarmlessAndChooseLetters(t *testing.T) {
	t.Parallel()
	s := newService(t, "classic")
	s.die()
	for i := range 3 {
		s.publish(s.queue+".dlq", shop.Dead("other\nqueue", header.RetryState{
			Reason: "\x1b[2Jcleared", Handler: "\u202ereversed",
			Error: fmt.Sprintf("\x1b]0;%d\a\u202eboom", i),
		}, amqp.Publishing{MessageId: fmt.Sprint("evil-", i)}))
	}
	rig.AwaitDepth(t, s.url, s.queue+".dlq", 6)
	o := s.tool("dead", "groups", s.queue)
	require.Equal(t, exitDone, o.code, o.err)
	require.NotContains(t, o.out, "\x1b")
	require.NotContains(t, o.out, "\u202e")
	exported := s.tool("dead", "export", s.queue, "--all").out
	require.NotContains(t, exported, "\u202e")
	require.Equal(t, 3, strings.Count(exported, `\u202eboom`), exported)
	require.Equal(t, 4, strings.Count(o.out, "\n"), o.out)
	require.Contains(t, o.out, " queue ", "some letters are of another queue")
	groups := decoded[[]operate.Group](t, s.tool("dead", "groups", s.queue, "--json").out)[0]
	require.Equal(t, 3, groups[0].Count)
	require.Equal(t, map[string]int{"other\nqueue": 3}, groups[0].Queues)
	o = s.tool("dead", "discard", s.queue, "--group", groups[0].ID, "--yes")
	require.Equal(t, "discarded 3 dead letters of 6\n", o.out, o.err)
	o = s.tool("dead", "discard", s.queue, "--group", groups[0].ID, "--yes")
	require.Equal(t, "discarded 0 dead letters of 3\n", o.out, o.err)
	for _, args := range [][]string{ // a misspelled group was a success
		{"dead", "discard", s.queue, "--yes"},
		{"dead", "replay", s.queue},
		{"dead", "replay", s.queue, "--dry-run"},
		{"dead", "replay", s.queue, "--policy", "1s,10s", "--canary", "1"},
	} {
		o = s.tool(append(args, "--group", groups[0].ID)...)
		require.Equal(t, exitFound, o.code, "%v: %s", args, o.err)
		require.Contains(t, o.err, "no dead letter of cause "+groups[0].ID+
			"; millpond dead groups lists them\n")
	}
	o = s.tool("dead", "list", s.queue, "--payload", `/"order":[01]/`,
		"--header", "tenant=/^1$/")
	require.Contains(t, o.out, "order-1")
	require.NotContains(t, o.out, "order-0")
}

// A question names the queues that a command acts on, and the file of a copy or that there is none.
func TestQuestionsSayWhatIsAtStake(t *testing.T) {
	t.Parallel()
	s := newService(t, "classic")
	s.die()
	for _, command := range []string{"replay", "discard"} {
		require.Contains(t, s.tool("dead", command, "--help").out,
			"Without QUEUE it acts on all queues of the virtual host.")
	}
	other := newService(t, "classic")
	o := s.editWith("", "n\n", "dead", "discard", s.queue, other.queue, "--all")
	require.Equal(t, exitRefused, o.code, o.err)
	require.Contains(t, o.err, `Throw away 3 dead letters of queue "`+s.queue+
		`.dlq", one of 2 queues, for good; no copy is kept? [y/N] `)
	file := filepath.Join(t.TempDir(), "copy.jsonl")
	o = s.editWith("", "y\n", "dead", "discard", s.queue, "--id", "order-1", "--export", file)
	require.Equal(t, exitDone, o.code, o.err)
	require.Contains(t, o.err, `.dlq" for good, with a copy in file "`+file+`"? [y/N] `)
	require.Equal(t, "discarded 1 dead letter of 3, kept in "+file+"\n", o.out)
}
