//go:build unix

package random

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestMain(m *testing.M) {
	flag.Parse()
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	// A fixed seed and number: each run of the tests has the same programs.
	must(flag.Set("rapid.nofailfile", "true"))
	must(flag.Set("rapid.checks", "6"))
	must(flag.Set("rapid.seed", "1"))
	testbroker.Main(m, closeBroker, func() error {
		var ignored []goleak.Option
		for _, f := range []string{"watchAllHandlersStopped.func1", "waitForHandlers.func1"} {
			// A router whose Subscribe fails leaves them behind.
			ignored = append(ignored, goleak.IgnoreAnyFunction(
				"github.com/ThreeDotsLabs/watermill/message.(*Router)."+f))
		}
		ignored = append(ignored, goleak.IgnoreAnyFunction(
			"github.com/ThreeDotsLabs/watermill/pubsub/sync.WaitGroupTimeout.func1"))
		return goleak.Find(ignored...)
	})
}

// owned is the node of all tests of this package, which run one after the other.
var owned struct {
	sync.Mutex
	broker  Broker
	started bool
}

// broker returns the node, and starts it for the first test.
func broker(t *testing.T) Broker {
	t.Helper()
	testbroker.RequireNode(t)
	owned.Lock()
	defer owned.Unlock()
	if !owned.started {
		b, err := StartBroker(context.Background())
		require.NoError(t, err)
		owned.broker, owned.started = b, true
	}
	return owned.broker
}

func closeBroker() error {
	if !owned.started {
		return nil
	}
	return owned.broker.Close()
}

// prove runs a program, and requires that it keeps the promises.
func prove(t *testing.T, p Program) Result {
	t.Helper()
	result, err := p.Run(t.Context(), broker(t))
	require.NoError(t, err)
	return result
}

// Given failures of all kinds, an alarm and every quick command of an operator, then each message
// ends once in each of its lives.
func TestEveryCommandBesideAnAlarm(t *testing.T) {
	result := prove(t, Program{
		Strategy: "shared",
		Via:      true, Workers: 2,
		Policy: "list", Delay: 200, Retries: 2,
		Messages: [][]Outcome{
			{"fail", "snooze", "panic", "fail"},
			{"permanent"},
			{"hang", "retry later"},
			{"fail", "fail", "fail"},
		},
		Steps: []Step{
			{Do: "release", Calls: 2},
			{Do: "cancel", Calls: 3},
			{Do: "memory alarm", Calls: 3},
			{Do: "edit", Calls: 4, Pause: 300},
			{Do: "replay", Calls: 5},
			{Do: "discard", Calls: 5},
		},
	})
	assert.Equal(t, 1, result.Done[MemoryAlarm])
	assert.Equal(t, 1, result.Done[Edit])
}

func TestAProgramIsPrintedAsATest(t *testing.T) {
	assert.Equal(t, `func TestFound(t *testing.T) {
	prove(t, Program{
		Strategy: "levels",
		Via:      false, Classic: true, Workers: 1,
		Policy: "list", Delay: 50, Retries: 2,
		Messages: [][]Outcome{
			{"fail", "panic"},
			{},
		},
		Steps: []Step{
			{Do: "cut connections", Calls: 2, Pause: 20, Pick: 3},
			{Do: "replay", Calls: 0, Pause: 0, Pick: 0},
		},
		Mistake: "",
	})
}
`, Program{
		Strategy: "levels", Classic: true, Workers: 1, Policy: "list", Delay: 50, Retries: 2,
		Messages: [][]Outcome{{Fail, Panic}, {}},
		Steps:    []Step{{Do: Cut, Calls: 2, Pause: 20, Pick: 3}, {Do: Replay}},
	}.Test())
}

// tally adds up the programs of a test.
type tally struct {
	programs, calls, extra, byBroker int
	done                             map[Action]int
}

func (a *tally) add(r Result) {
	if a.done == nil {
		a.done = map[Action]int{}
	}
	a.programs++
	a.calls += r.Calls
	a.extra += r.Extra
	a.byBroker += r.ByBroker
	for action, times := range r.Done {
		a.done[action] += times
	}
}

func (a *tally) String() string {
	var steps []string
	for action, times := range a.done {
		steps = append(steps, fmt.Sprintf("%s %d", action, times))
	}
	slices.Sort(steps)
	return fmt.Sprintf("%d programs, %d calls of which %d are explained copies, %d sent twice "+
		"to a classic queue; steps: %s", a.programs, a.calls, a.extra, a.byBroker,
		strings.Join(steps, ", "))
}

// prover runs the programs of a test.
type prover struct {
	broker  Broker
	draw    func(*rapid.T) Program
	mistake Mistake
	total   tally
	undone  int     // programs that could not be run
	last    Program // that failed
	// known has the outcomes since the first failure, because shrinking repeats programs.
	known map[string]error
	// shrinking is the number of programs that are run after the first failure.
	shrinking int
}

// property fails for a program that does not keep the promises.
func (c *prover) property(t *rapid.T) {
	p := c.draw(t)
	p.Mistake = c.mistake
	text := p.Test()
	err, known := c.known[text]
	switch {
	case known:
	case c.known != nil && len(c.known) > c.shrinking:
		return
	default:
		var result Result
		result, err = p.Run(context.Background(), c.broker)
		c.total.add(result)
	}
	if errors.Is(err, ErrNotDone) {
		c.undone++ // which says nothing about the promises
		fmt.Printf("%v\nof\n%s", err, text)
		err = nil
	}
	if err != nil && c.known == nil {
		c.known = map[string]error{}
	}
	if c.known != nil {
		c.known[text] = err
	}
	if err != nil {
		c.last = p
		t.Logf("%v\nPaste this test:\n%s", err, text)
		t.Fatal("the program breaks a promise") // the same text each time, or nothing shrinks
	}
}

// requireDone fails the test if more than a tenth of the programs could not be run.
func (c *prover) requireDone(t *testing.T) {
	t.Helper()
	assert.LessOrEqual(t, c.undone, c.total.programs/10, "programs that could not be run")
}

func TestAFewRandomPrograms(t *testing.T) {
	b := broker(t)
	c := prover{
		broker: b, draw: func(t *rapid.T) Program { return Draw(t, false) }, shrinking: 100,
	}
	rapid.Check(t, c.property)
	t.Logf("RabbitMQ %s: %s", b.Node(0).Version(), &c.total)
	assert.Positive(t, c.total.calls)
	c.requireDone(t)
}

// MILLPOND_RANDOM is the time for programs, and the first seed: "1h 100". Each 25
// programs have a seed, which is printed.
func TestRandomProgramsForLong(t *testing.T) {
	text := os.Getenv("MILLPOND_RANDOM")
	if text == "" {
		t.Skip("needs MILLPOND_RANDOM, which says for how long: make random")
	}
	first, from, _ := strings.Cut(text, " ")
	length, err := time.ParseDuration(first)
	require.NoError(t, err)
	seed, err := strconv.Atoi(cmp.Or(from, "1"))
	require.NoError(t, err)
	b := broker(t)
	c := prover{
		broker: b, draw: func(t *rapid.T) Program { return Draw(t, true) }, shrinking: 300,
	}
	require.NoError(t, flag.Set("rapid.checks", "25"))
	defer func() { require.NoError(t, flag.Set("rapid.checks", "6")) }()
	from = strconv.Itoa(seed)
	for begun := time.Now(); time.Since(begun) < length && !t.Failed(); seed++ {
		require.NoError(t, flag.Set("rapid.seed", fmt.Sprint(seed)))
		rapid.Check(t, c.property)
		fmt.Printf("RabbitMQ %s, %s: seeds %s to %d: %d not run, %s\n", b.Node(0).Version(),
			time.Since(begun).Round(time.Second), from, seed, c.undone, &c.total)
	}
	c.requireDone(t)
}

// silent is a test whose failure is expected.
type silent struct {
	*testing.T
	failed bool
}

type ended struct{}

func (s *silent) Errorf(string, ...any) { s.failed = true }
func (s *silent) Error(...any)          { s.failed = true }
func (s *silent) Fail()                 { s.failed = true }
func (s *silent) Failed() bool          { return s.failed }
func (s *silent) FailNow()              { s.failed = true; panic(ended{}) }
func (s *silent) Fatalf(string, ...any) { s.FailNow() }
func (s *silent) Fatal(...any)          { s.FailNow() }

// search runs random programs with a mistake, and returns the shortest program that shows it.
func search(t *testing.T, mistake Mistake) (found Program, failed bool) {
	t.Helper()
	s := &silent{T: t}
	c := prover{broker: broker(t), draw: DrawPlain, mistake: mistake, shrinking: 10}
	c.broker.Patience = 2 * time.Second
	require.NoError(t, flag.Set("rapid.checks", "50"))
	defer func() { require.NoError(t, flag.Set("rapid.checks", "6")) }()
	func() {
		defer func() {
			if r := recover(); r != nil && r != any(ended{}) {
				panic(r)
			}
		}()
		rapid.Check(s, c.property)
	}()
	t.Logf("%s\n%s", &c.total, c.last.Test())
	return c.last, s.failed
}

// Given services that publish a copy twice, then a program shows it, and is shrunk to one message
// that fails once.
func TestASecondCopyIsFoundAndShrunk(t *testing.T) {
	found, failed := search(t, PublishTwice)
	require.True(t, failed)
	assert.Len(t, found.Messages, 1)
	assert.Len(t, found.Messages[0], 1)
	assert.Empty(t, found.Steps)
	_, err := found.Run(t.Context(), broker(t))
	require.ErrorContains(t, err, "ran 2 times; the steps explain 1")
}

// Given services that ack before the copy is confirmed, then a program loses a message, and is
// shrunk to a kill while a message is handed over.
func TestAnAckBeforeTheConfirmIsFoundAndShrunk(t *testing.T) {
	found, failed := search(t, AckEarly)
	require.True(t, failed)
	assert.Len(t, found.Messages, 1)
	assert.LessOrEqual(t, len(found.Steps), 2)
	assert.True(t, found.has(KillService))
}
