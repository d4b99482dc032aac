package topology

import "fmt"

// Finding is one thing that Verify found.
type Finding struct {
	Severity Severity
	Problem  Problem
	// Kind is "queue", "exchange", "binding" or "broker", Name its name.
	Kind, Name string
	// Text says what is the matter, what follows, and the way out.
	Text string
}

// String is the finding in one line.
func (f Finding) String() string {
	name := f.Kind
	if f.Name != "" {
		name = fmt.Sprintf("%s %q", f.Kind, f.Name)
	}
	return fmt.Sprintf("%s: %s: %s", f.Severity, name, f.Text)
}

// Severity says how much a Finding matters.
type Severity string

const (
	// Critical: messages can be lost, or retries do not work.
	Critical Severity = "critical"
	// Warning: it works, with a limit that should be known.
	Warning Severity = "warning"
)

// Problem is the sort of a Finding, for programs.
type Problem string

const (
	// Missing: it does not exist, or cannot be reached.
	Missing Problem = "missing"
	// Conflicting: it exists with other arguments than ours.
	Conflicting Problem = "conflicting"
	// Dropping: the queue's own settings may drop messages.
	Dropping Problem = "dropping"
	// Overruled: a policy of the broker changes the queue or the exchange.
	Overruled Problem = "overruled"
	// Exposed: a setting or the state of the broker makes less of the promise.
	Exposed Problem = "exposed"
	// Disabled: a feature flag is off.
	Disabled Problem = "disabled"
	// Consumed: somebody consumes a wait queue.
	Consumed Problem = "consumed"
	// Unchecked: it could not be looked at.
	Unchecked Problem = "unchecked"
)
