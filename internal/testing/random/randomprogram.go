package random

import (
	"fmt"
	"go/format"
	"strings"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
)

// Program is a service, its messages, and everything that happens to them. Its fields are plain, so
// that a printed program can be pasted into a test. Times are milliseconds.
type Program struct {
	Strategy string // perqueue, shared, perattempt or levels
	Via      bool   // messages come by an exchange, and retries return by it; perqueue and shared
	Classic  bool   // the source queue is classic, not quorum
	Workers  int    // messages in progress at once

	Policy  string // constant, linear, exponential or list
	Delay   int    // the first delay
	Retries int

	// Messages has the outcomes of each message's calls, in their order. Later calls succeed.
	Messages [][]Outcome
	Steps    []Step
	Mistake  Mistake
}

// Outcome is the result of a handler's call.
type Outcome string

// The outcomes.
const (
	Succeed    Outcome = "succeed"
	Fail       Outcome = "fail"
	Panic      Outcome = "panic"
	Hang       Outcome = "hang" // for a while, then an error
	RetryLater Outcome = "retry later"
	Snooze     Outcome = "snooze" // counts no attempt
	Permanent  Outcome = "permanent"
)

// Outcomes lists all outcomes, the simplest first.
var Outcomes = []Outcome{Succeed, Fail, Permanent, Snooze, RetryLater, Panic, Hang}

// Step is a fault or a command. It waits until that many calls have ended, or for a second. Then it
// waits for the pause.
type Step struct {
	Do    Action
	Calls int
	Pause int
	Pick  int // selects a part of the plan
}

// Action is a fault, or a command of an operator.
type Action string

// The faults.
const (
	Cut           Action = "cut connections"
	Blackhole     Action = "blackhole"
	DelayConfirms Action = "delay confirms"
	KillService   Action = "kill service"
	StopService   Action = "stop service"
	// DeleteQueue deletes a wait queue that is empty by proof. It is left out after a fault that may
	// have left copies.
	DeleteQueue    Action = "delete queue"
	DeleteExchange Action = "delete exchange" // breaks the channel that publishes to it
	DeleteBinding  Action = "delete binding"
	RestartNode    Action = "restart node"
	KillNode       Action = "kill node"
	FreezeNode     Action = "freeze node"
	MemoryAlarm    Action = "memory alarm"
)

// The operator's commands.
const (
	Release Action = "release"
	Cancel  Action = "cancel"
	Replay  Action = "replay"
	Edit    Action = "edit"
	Discard Action = "discard"
	// Prune asks to delete a wait queue of an earlier policy, and must be refused.
	Prune Action = "prune"
)

// Quick lists the actions that take about a second or less, and Slow the others.
var (
	Quick = []Action{
		Cut, KillService, StopService, DelayConfirms, Release, Cancel, Replay, Edit, Discard,
		DeleteExchange, DeleteBinding, DeleteQueue, Blackhole,
	}
	Slow = []Action{MemoryAlarm, FreezeNode, RestartNode, KillNode, Prune}
)

// doublings says how often an action may double the copies of a message. An action that is missing
// explains no copy.
var doublings = map[Action]int{
	Cut: 1, Blackhole: 1, KillService: 1, FreezeNode: 1,
	// Messages on their way on the channel are handed over again.
	DeleteExchange: 1,
	// The queue gives messages back, and at-least-once dead-lettering sends them again (F18).
	RestartNode: 2, KillNode: 2,
	// A replayed message has a new series of attempts.
	Replay: 1, Edit: 1,
}

// breaks reports whether an action may leave a copy that nothing has counted.
func (a Action) breaks() bool {
	switch a {
	case Cut, Blackhole, KillService, FreezeNode, RestartNode, KillNode, DeleteExchange:
		return true
	}
	return false
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// policy returns the policy that the program describes.
func (p Program) policy() backoff.Policy {
	first := ms(p.Delay)
	switch p.Policy {
	case "constant":
		return backoff.Constant{Interval: first, Retries: p.Retries}
	case "linear":
		return backoff.Linear{Initial: first, Step: first, Retries: p.Retries}
	case "exponential":
		return backoff.Exponential{Initial: first, Factor: 2, Max: 3 * first, Retries: p.Retries}
	}
	var list backoff.List
	for i := range p.Retries { // up and down
		list = append(list, first*time.Duration(1+i%2))
	}
	return list
}

// topology returns the strategy that the program describes. All names on the broker begin with the
// name of the queue.
func (p Program) topology(queue, via string) topology.Strategy {
	var vias []string
	if via != "" {
		vias = []string{via}
	}
	switch p.Strategy {
	case "shared":
		return topology.Shared{Prefix: queue + ".of", Via: vias}
	case "perattempt":
		return topology.PerAttempt{}
	case "levels":
		return topology.Levels{
			Prefix: queue + ".of", Resolution: 50 * time.Millisecond, Max: 5 * time.Second,
		}
	}
	return topology.PerQueue{Prefix: queue + ".of", Via: vias}
}

// has reports whether the program has a step with one of the actions.
func (p Program) has(actions ...Action) bool {
	for _, s := range p.Steps {
		for _, a := range actions {
			if s.Do == a {
				return true
			}
		}
	}
	return false
}

// Test returns the source of a test that runs the program.
func (p Program) Test() string {
	text := fmt.Sprintf("func TestFound(t *testing.T) {\n\tprove(t, %#v)\n}\n", p)
	for old, shorter := range map[string]string{
		`[]random.Outcome{"`: `{"`, "[]random.Outcome{}": "{}", "random.Step{Do": "{Do",
	} {
		text = strings.ReplaceAll(text, old, shorter)
	}
	text = strings.NewReplacer("random.", "", "{{", "{\n{", "}, {", "},\n{", "}}", "},\n}",
		", Via:", ",\nVia:", ", Policy:", ",\nPolicy:", ", Messages:", ",\nMessages:",
		", Steps:", ",\nSteps:", ", Mistake:", ",\nMistake:", "Program{", "Program{\n").Replace(text)
	text = strings.ReplaceAll(text, "\"})\n}", "\",\n})\n}")
	source, err := format.Source([]byte(text))
	if err != nil {
		return text
	}
	return string(source)
}
