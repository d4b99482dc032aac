package order_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/order"
)

// bug is a mistake that the judge must find.
type bug string

const (
	noBug           bug = ""
	ackBeforeCopy   bug = "a message is acked before its copy is in the line"
	takenForHandled bug = "a key is taken for free although a copy of its message is in the line"
	unread          bug = "a new leader does not read the line"
	noSecondToken   bug = "a new leader reads the line before the earlier one has left the queue"
	numberLost      bug = "a message loses its number in the line"
	markLost        bug = "a mark is not known when its message comes again"
)

// world is a broker with both queues, and the process that leads, in steps of simulated time.
type world struct {
	t    *testing.T
	rand *rand.Rand
	bug  bug
	now  time.Time

	main, line []*stored // not delivered
	dead       []*stored // with Block
	ids        int
	kills      int // so many messages end their process, and nothing else does

	leader
	judge
}

// stored is a message in a queue.
type stored struct {
	key   string
	n     int // of the key
	fails int // so often
	dies  bool
	kills *bool // it ends its process, until it is blamed; of all its copies
	again bool  // was delivered from the main queue before
	note  order.Note
	due   time.Time
	id    int
}

// leader is the process that leads.
type leader struct {
	memory  *order.Line[*stored]
	mainOut []*stored // delivered and not settled
	lineOut []*stored
	running []*running
	later   []*stored // releases
	gate    string
	whole   bool
	came    bool
	reading bool // the main queue
	gates   int
	known   bool // a gate was passed
	// blamed was tried alone when the process before has ended, the others together.
	blamed   order.ID
	suspects []order.ID
}

// running is a step in progress.
type running struct {
	step   *order.Step[*stored]
	marked bool
	copied bool
	ended  bool
}

// judge knows the messages that were begun and that have succeeded, or that a person has let go.
type judge struct {
	succeeded map[string]map[int]bool
	begun     map[string]int // the highest number
	wrong     []string

	deaths, blames int // since messages are tried
}

const (
	keys     = 4
	perKey   = 12
	prefetch = 8
	most     = 4 // are tried together
)

func newWorld(t *testing.T, seed uint64, b bug) *world {
	w := &world{
		t: t, rand: rand.New(rand.NewPCG(seed, 1)), bug: b, now: time.Unix(1_000_000, 0),
		judge: judge{succeeded: map[string]map[int]bool{}, begun: map[string]int{}},
	}
	for n := range perKey {
		for k := range keys {
			key := string(rune('a' + k))
			fails := 0
			if w.rand.IntN(4) == 0 {
				fails = 1 + w.rand.IntN(3)
			}
			dies := w.rand.IntN(8) == 0
			w.main = append(w.main, w.store(&stored{key: key, n: n, fails: fails, dies: dies}))
			w.succeeded[key] = map[int]bool{}
		}
	}
	for key := range w.succeeded {
		w.begun[key] = -1
	}
	w.lead()
	return w
}

func (w *world) store(s *stored) *stored {
	w.ids++
	s.id = w.ids
	return s
}

// lead begins a new leader. The earlier leader may go on until the main queue is taken from it. Its
// messages come again, in the order of their delivery.
func (w *world) lead() {
	old := w.leader
	w.line = append(slices.Clone(old.lineOut), w.line...)
	w.leader = leader{memory: order.New[*stored](order.Limits{Messages: 20, Bytes: 1 << 20})}
	if old.memory != nil {
		w.blamed, w.suspects = old.memory.Trying()
	}
	w.came = w.bug == noSecondToken
	w.shut()
	if w.rand.IntN(2) == 0 {
		w.readLine()
	}
	for _, r := range old.running {
		if r.dies() && !r.marked && slices.Contains(old.mainOut, r.step.Item) && w.rand.IntN(2) == 0 {
			w.mark(r.step)
		}
		copies := r.step.Follows || r.step.Item.fails > 0
		if copies && !r.copied && slices.Contains(old.mainOut, r.step.Item) && w.rand.IntN(2) == 0 {
			w.copy(r.step)
			old.mainOut = without(old.mainOut, r.step.Item)
		}
	}
	w.main = append(slices.Clone(old.mainOut), w.main...)
	if w.bug == unread {
		w.memory.Know(uint64(w.ids), true)
		w.gate, w.reading, w.came, w.whole = "", true, true, true
	}
}

// copy puts the copy of a step into the line.
func (w *world) copy(step *order.Step[*stored]) {
	again := *step.Item
	again.note = order.Note{Kind: order.Wait, Seq: step.Seq, ID: step.ID, First: step.First}
	if !step.Follows {
		again.fails--
		again.due = w.now.Add(time.Duration(w.rand.IntN(5000)) * time.Millisecond)
	}
	w.line = append(w.line, w.store(&again))
}

// shut puts a token behind everything in the line.
func (w *world) shut() {
	w.gates++
	w.gate, w.whole = fmt.Sprint(w.ids, "-", w.gates), w.came
	w.line = append(w.line, w.store(&stored{note: order.Note{
		Kind: order.Token, Epoch: w.memory.Epoch() + 1, Name: w.gate,
	}}))
}

func (w *world) readLine() {
	for len(w.line) > 0 {
		w.deliverLine()
	}
}

func (w *world) deliverLine() {
	if len(w.line) == 0 {
		return
	}
	s := w.line[0]
	w.line = w.line[1:]
	if s.note.Kind == order.Token {
		before := w.memory.Epoch()
		w.memory.Seen(s.note.Epoch)
		if s.note.Name != w.gate {
			w.lineOut = append(w.lineOut, s)
			return
		}
		if s.note.Epoch <= before {
			w.shut()
			return
		}
		w.lineOut = append(slices.DeleteFunc(w.lineOut, isToken), s)
		w.gate, w.reading = "", true
		w.memory.Know(s.note.Epoch, w.whole)
		if !w.known {
			w.known = true
			w.memory.BeCareful(w.rand.IntN(3) > 0 || w.kills > 0, most, append(w.suspects, w.blamed)...)
		}
		for _, release := range w.later {
			for _, mark := range append(w.memory.Release(release.key, release.note.ID), release) {
				w.settle(mark)
			}
		}
		w.later = nil
		if w.came && !w.whole {
			w.shut()
		}
		return
	}
	w.lineOut = append(w.lineOut, s)
	if s.note.Kind == order.Release {
		if w.gate == "" {
			for _, mark := range append(w.memory.Release(s.key, s.note.ID), s) {
				w.settle(mark)
			}
		} else {
			w.later = append(w.later, s)
		}
		return
	}
	note := s.note
	if w.bug == numberLost && w.rand.IntN(3) == 0 {
		note.Seq = 0
	}
	w.memory.Returned(order.Waiting[*stored]{
		Key: s.key, Seq: note.Seq, ID: note.ID, First: note.First, Due: s.due, Size: 100,
		Block: note.Kind == order.Block, Alone: w.rand.IntN(20) == 0, Item: s,
	})
}

func (w *world) deliverMain() {
	if len(w.main) == 0 || !w.reading || len(w.mainOut) >= prefetch {
		return
	}
	s := w.main[0]
	w.main = w.main[1:]
	w.mainOut = append(w.mainOut, s)
	w.memory.Arrived(s.key, s, s.again, w.rand.IntN(50) == 0)
	s.again = true
	if !w.came {
		w.came = true
		if w.gate == "" {
			w.shut()
		}
	}
}

func (w *world) begin() {
	if len(w.running) >= 4 {
		return
	}
	step, ok := w.memory.Next(w.now)
	if !ok && w.gate == "" {
		w.memory.Know(w.memory.Epoch(), false) // looks at all keys
		if step, ok = w.memory.Next(w.now); ok {
			w.wrong = append(w.wrong, step.Item.key+" was not woken")
		}
	}
	if !ok {
		return
	}
	if w.bug == markLost {
		step.Mark = order.ID{}
	}
	w.running = append(w.running, &running{step: step, marked: step.Mark != order.ID{}})
	if s := step.Item; !step.Follows {
		if step.From == w.blamed && w.blamed != (order.ID{}) {
			w.blame(s)
		}
		alone, _ := w.memory.Trying()
		others := w.running[:len(w.running)-1]
		if alone == step.From && alone != (order.ID{}) && slices.ContainsFunc(others,
			func(r *running) bool { return !r.step.Follows }) {
			w.wrong = append(w.wrong, fmt.Sprintf("%s%d is not alone", s.key, s.n))
		}
		if w.rand.IntN(3) == 0 { // another end than before
			s.dies = false
		} else if step.Mark != (order.ID{}) && w.rand.IntN(3) == 0 {
			s.fails++
		}
		for n := range s.n {
			if !w.succeeded[s.key][n] {
				w.wrong = append(w.wrong, fmt.Sprintf("%s%d was begun before %s%d", s.key, s.n, s.key, n))
			}
		}
	}
}

// blame notes that the last process has ended while it tried a message alone.
func (w *world) blame(s *stored) {
	w.blames++
	switch {
	case s.kills != nil && *s.kills:
		*s.kills = false
	case w.kills > 0:
		w.wrong = append(w.wrong, fmt.Sprintf("%s%d is blamed", s.key, s.n))
	}
}

// proceed takes a random step in progress one step further: its copy, its ack, its end.
func (w *world) proceed() {
	if len(w.running) == 0 {
		return
	}
	i := w.rand.IntN(len(w.running))
	r := w.running[i]
	s := r.step.Item
	switch {
	case s.kills != nil && *s.kills && !r.step.Follows:
		w.deaths++
		w.lead()
	case !r.ended && r.dies() && !r.marked:
		w.mark(r.step)
		r.marked = true
	case !r.ended && r.dies():
		letter := *s
		letter.dies, letter.note = w.rand.IntN(4) == 0, markNote(r.step)
		w.dead = append(w.dead, w.store(&letter))
		r.ended, r.copied = true, r.step.Mark == order.ID{}
	case !r.ended && !r.copied && !r.step.Follows && s.fails == 0:
		w.succeeded[s.key][s.n] = true
		r.ended = true
	case !r.ended && !r.copied:
		if w.bug == ackBeforeCopy && w.rand.IntN(4) == 0 {
			w.settle(s)
			w.running = nil
			w.lead()
			return
		}
		w.copy(r.step)
		r.copied, r.ended = true, true
	default:
		w.settle(s)
		w.running = slices.Delete(w.running, i, i+1)
		w.memory.Ended(r.step, r.copied && w.bug != takenForHandled)
		if r.step.Mark != (order.ID{}) && !r.dies() {
			for _, mark := range w.memory.Release(s.key, r.step.Mark) {
				w.settle(mark)
			}
		}
	}
}

func (w *world) settle(s *stored) {
	w.mainOut, w.lineOut = without(w.mainOut, s), without(w.lineOut, s)
}

func without(all []*stored, s *stored) []*stored {
	return slices.DeleteFunc(slices.Clone(all), func(o *stored) bool { return o == s })
}

// dies reports whether the step makes a dead letter, behind its mark.
func (r *running) dies() bool {
	return !r.step.Follows && r.step.Item.fails == 0 && r.step.Item.dies
}

func markNote(step *order.Step[*stored]) order.Note {
	return order.Note{
		Kind: order.Block, Seq: step.Seq, ID: cmp.Or(step.Mark, step.ID), First: step.First,
	}
}

// mark puts the mark of a dead letter into the line.
func (w *world) mark(step *order.Step[*stored]) {
	mark := *step.Item
	mark.note = markNote(step)
	w.line = append(w.line, w.store(&mark))
}

// decide lets a person replay the letter that blocks a key. A mark without a letter is released if
// its message is still there; then it comes next.
func (w *world) decide() {
	if w.gate != "" || !w.reading {
		return
	}
	blocked := slices.SortedFunc(w.memory.Keys, func(a, b order.Key[*stored]) int {
		return cmp.Compare(a.Key, b.Key)
	})
	for _, k := range blocked {
		isOf := func(s *stored) bool { return s.key == k.Key }
		if k.Mark == nil || slices.ContainsFunc(w.running, func(r *running) bool {
			return isOf(r.step.Item)
		}) || slices.ContainsFunc(w.line, isOf) {
			continue // it is not over
		}
		mark := *k.Mark
		found := false
		for _, s := range slices.Clone(w.dead) {
			if s.key == k.Key && s.note.ID == k.MarkID {
				again := *s
				again.note.Kind = order.Wait
				w.line = append(w.line, w.store(&again))
				w.dead = without(w.dead, s)
				found = true
			}
		}
		isThere := slices.ContainsFunc(slices.Concat(w.main, w.mainOut, w.lineOut), func(s *stored) bool {
			return isOf(s) && s.n == mark.n && s.note.Kind != order.Block
		})
		if !found && !isThere {
			w.wrong = append(w.wrong, fmt.Sprintf("%s is blocked by %d, which is nowhere", k.Key, mark.n))
		}
		if !found {
			w.succeeded[k.Key][mark.n] = true
		}
		w.line = append(w.line, w.store(&stored{key: k.Key, note: order.Note{
			Kind: order.Release, ID: k.MarkID,
		}}))
		return
	}
}

// forget gives everything in the line back, as before the broker's consumer timeout.
func (w *world) forget() {
	if w.gate != "" || !w.reading {
		return
	}
	items := w.memory.Forget()
	w.rand.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
	for _, s := range items {
		w.settle(s)
	}
	w.line = append(items, w.line...)
	w.shut()
}

func (w *world) isDone() bool {
	isMessage := func(s *stored) bool { return !isToken(s) }
	return len(w.main)+len(w.mainOut)+len(w.running) == 0 &&
		!slices.ContainsFunc(w.line, isMessage) && !slices.ContainsFunc(w.lineOut, isMessage)
}

func isToken(s *stored) bool { return s.note.Kind == order.Token }

// run lets the world go on until everything is handled. It reports mistakes.
func (w *world) run() (wrong []string) {
	for range 20_000 {
		if w.isDone() {
			break
		}
		switch w.rand.IntN(40) {
		case 0:
			if w.kills == 0 && w.rand.IntN(10) == 0 {
				w.lead()
			} else if w.kills == 0 && w.rand.IntN(10) == 0 {
				w.memory.BeCareful(false, most)
			}
		case 1:
			if w.rand.IntN(10) == 0 {
				w.forget()
			}
		case 2:
			w.decide()
		case 3, 4, 5:
			w.now = w.now.Add(time.Duration(w.rand.IntN(500)) * time.Millisecond)
		default:
			switch w.rand.IntN(4) {
			case 0:
				w.deliverMain()
			case 1:
				w.deliverLine()
			case 2:
				w.begin()
			default:
				w.proceed()
			}
		}
	}
	if !w.isDone() {
		w.wrong = append(w.wrong, fmt.Sprintf("stands still: %d and %d in the queues, %d and %d "+
			"delivered, %d in progress, gate %q", len(w.main), len(w.line), len(w.mainOut), len(w.lineOut),
			len(w.running), w.gate))
	}
	for key, done := range w.succeeded {
		if len(done) != perKey {
			w.wrong = append(w.wrong, fmt.Sprintf("%s: %d of %d handled", key, len(done), perKey))
		}
	}
	return w.wrong
}

// Given a broker whose leaders end at any step, then the messages of each key are handled in their
// order, and none is lost or stands still.
func TestKeysKeepTheirOrder(t *testing.T) {
	t.Parallel()
	seeds := uint64(3000)
	if os.Getenv("MILLPOND_LONG") != "" {
		seeds = 20_000
	}
	for seed := range seeds {
		if wrong := newWorld(t, seed, noBug).run(); len(wrong) > 0 {
			t.Fatalf("seed %d: %v", seed, wrong)
		}
	}
}

// Given messages that end their process each time, then each is found after few deaths: the first
// death as a fresh message, then one for each halving. No other message is blamed.
func TestTheMessagesThatEndTheirProcessAreFound(t *testing.T) {
	t.Parallel()
	for seed := range uint64(1000) {
		w := newWorld(t, seed, noBug)
		w.kills = 1 + int(seed%3)
		for i := range w.kills {
			s, kills := w.main[w.rand.IntN(len(w.main)/3)+i*len(w.main)/3], true
			s.kills, s.fails, s.dies = &kills, 0, false
		}
		if wrong := w.run(); len(wrong) > 0 {
			t.Fatalf("seed %d: %v", seed, wrong)
		}
		require.False(t, w.blames != w.kills || w.deaths > 4*w.kills,
			"seed %d: %d deaths and %d blames of %d messages", seed, w.deaths, w.blames, w.kills)
	}
}

// Else two messages that end their process could take each other's place without end.
func TestASuspectIsTriedFirst(t *testing.T) {
	t.Parallel()
	for n := range uint64(20) {
		l := order.New[uint64](order.Limits{Messages: 100, Bytes: 1 << 20})
		suspect := order.ID{Epoch: 1, N: n}
		for n := range uint64(20) {
			l.Returned(order.Waiting[uint64]{ID: order.ID{Epoch: 1, N: n}, Item: n})
		}
		l.Know(2, true)
		l.BeCareful(true, most, suspect)
		step, ok := l.Next(time.Time{})
		require.True(t, ok)
		require.Equal(t, suspect, step.From)
	}
}

// The judge of the simulation finds each of these mistakes.
func TestEachMistakeIsFound(t *testing.T) {
	t.Parallel()
	for _, b := range []bug{
		ackBeforeCopy, takenForHandled, unread, noSecondToken, numberLost, markLost,
	} {
		t.Run(string(b), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(1000) {
				if wrong := newWorld(t, seed, b).run(); len(wrong) > 0 {
					t.Logf("seed %d: %s", seed, wrong[0])
					return
				}
			}
			t.Error("not found")
		})
	}
}
