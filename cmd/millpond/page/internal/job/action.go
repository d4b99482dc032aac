// Package job runs the actions of a page: replays and edits of dead letters, discards,
// returns of stranded messages, releases and cancels of waiting ones.
//
// An action is rehearsed first (Manager.Rehearse), which moves nothing and returns its count, its
// words and a digest. It begins when a person confirms that digest (Manager.Start), and moves no
// more messages than were rehearsed. One action at a time works on a dead-letter queue. It goes on
// when its page is closed, and every page sees it (Manager.Changed). It can be stopped, and
// resumed by another action with the same filter: a message that was moved is not there any more.
//
// With a folder, a journal survives a kill of the process: the next Manager says how far an action
// was (StateInterrupted). No message is lost, because a message leaves its queue after it was
// confirmed elsewhere. An audit log says who did what, when and to how many messages. Neither file
// has payloads or credentials.
package job

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/topology/operate"
)

var (
	// ErrRequest: the request makes no sense. Its text names every problem.
	ErrRequest = errors.New("the action cannot be done as asked")
	// ErrNoFilter: the request has neither a filter nor All.
	ErrNoFilter = errors.New("give a filter, or say that all messages are meant")
	// ErrNothing: the filter chooses no message.
	ErrNothing = errors.New("the filter chooses no message, so there is nothing to do")
	// ErrBusy: another action or rehearsal works on the same dead-letter queue.
	ErrBusy = errors.New("another action works on the messages of this queue")
	// ErrDigest: the confirmation is not for this rehearsal.
	ErrDigest = errors.New("this is another action than the rehearsed one: rehearse it again and " +
		"confirm that")
	// ErrNoAction: there is no such action, or its rehearsal is too old.
	ErrNoAction = errors.New("there is no such action; a rehearsal is kept for 15 minutes: " +
		"rehearse it again")
	// ErrState: the action cannot do this in its state.
	ErrState = errors.New("not in this state")
	// ErrNoFolder: Discard needs the folder in which it keeps the letters.
	ErrNoFolder = errors.New("letters are written to a file before they are discarded, and no " +
		"folder is known for it: start the page with one")
	// ErrLocked: another process uses the folder.
	ErrLocked = errors.New("another process uses the folder: name another one, with --state")
	// ErrChanged: the letter is not there as the person has seen it.
	ErrChanged = errors.New("the letter is no longer there as it was: look at it again")
)

// State of an action.
type State string

const (
	// StateRehearsed waits for its confirmation.
	StateRehearsed State = "rehearsed"
	// StateRunning moves messages, or watches them.
	StateRunning State = "running"
	// StateStopping moves no more messages, and counts.
	StateStopping State = "stopping"
	// StateStopped was stopped by a person, or by itself because too many letters were dead again.
	StateStopped State = "stopped"
	// StateDone has ended.
	StateDone State = "done"
	// StateFailed has ended with an error. The rest of the messages is where it was.
	StateFailed State = "failed"
	// StateInterrupted was running when the process ended. The rest of the messages is where it was.
	StateInterrupted State = "interrupted"
)

// Action is an action at one moment. It is plain data.
type Action struct {
	ID      string  `json:"id"`
	Who     string  `json:"who"`
	Request Request `json:"request"`
	// Source is the queue that the messages leave; for Release and Cancel the queue that they wait
	// for.
	Source string `json:"source"`
	// Count is the number of messages that was rehearsed: no more are moved.
	Count int `json:"count"`
	// Words describe the action in one sentence.
	Words string `json:"words"`
	// Digest is needed to start it.
	Digest string `json:"digest,omitempty"`
	State  State  `json:"state"`

	Rehearsed time.Time `json:"rehearsed"`
	Began     time.Time `json:"began,omitzero"`
	Ended     time.Time `json:"ended,omitzero"`
	// Noted is the time of Progress, where the process was ended before it could write the last.
	Noted    time.Time `json:"noted,omitzero"`
	Progress Progress  `json:"progress"`
	// Error says why it stopped or failed.
	Error string `json:"error,omitempty"`
	// StoppedBy is who stopped it.
	StoppedBy string `json:"stopped_by,omitempty"`
	// Export is the file with the letters that were discarded.
	Export string `json:"export,omitempty"`
}

// Progress counts the messages of an action.
type Progress struct {
	operate.Progress
	// Ramp has the letters of a Replay that is watched.
	Ramp *operate.RampResult `json:"ramp,omitempty"`
}

func rampOf(r operate.RampResult) Progress {
	return Progress{Ramp: &r, Progress: operate.Progress{
		Chosen: r.Started, Done: r.Replayed(), Foreign: r.Foreign, Spent: r.Spent, Refused: r.Refused,
	}}
}

// Active reports whether the action is under way.
func (a Action) Active() bool { return a.State == StateRunning || a.State == StateStopping }

// Resumable reports whether the same filter may find messages that the action has left.
func (a Action) Resumable() bool {
	return verbs[a.Request.Kind] != "" && a.Request.Kind != Edit && a.Progress.Done < a.Count &&
		slices.Contains([]State{StateStopped, StateFailed, StateInterrupted}, a.State)
}

// Deed is what the action does in a few words, for its button: Replay 40 letters.
func (a Action) Deed() string { return verbs[a.Request.Kind] + " " + a.things() }

// Title names the action: Replay of 40 letters of orders.
func (a Action) Title() string {
	return fmt.Sprintf("%s of %s of %s", verbs[a.Request.Kind], a.things(), a.Request.Queue)
}

// things are the messages of the action, or its key.
func (a Action) things() string {
	text := overview.Digits(a.Count) + " " + cmp.Or(messages[a.Request.Kind], "letter")
	if a.Count != 1 {
		text += "s"
	}
	switch a.Request.Kind {
	case ReleaseKey:
		return "key " + a.Request.KeyText
	case ReplayKey:
		return text + " of key " + a.Request.KeyText
	}
	return text
}

// Outcome says in a sentence how far the action is.
func (a Action) Outcome() string {
	of := fmt.Sprintf("%s of %s", overview.Digits(a.Progress.Done), overview.Digits(a.Count))
	switch a.State {
	case StateRehearsed:
		return "waits for its confirmation; nothing was moved"
	case StateInterrupted:
		return fmt.Sprintf("interrupted at %s or more, as noted at %s, because the process ended; "+
			"none is lost", of, overview.At(a.Noted))
	case StateStopped, StateFailed:
		return fmt.Sprintf("%s at %s; the others are where they were", a.State, of)
	}
	if a.State == StateDone && a.Progress.Done < a.Count {
		return fmt.Sprintf("done: %s; the others stay, or were not there any more", of)
	}
	if a.State == StateDone && (a.Request.Kind == Return || a.Request.Kind == Edit) {
		of += "; what its handler makes of them is not watched: see Waiting and Dead letters"
	}
	return fmt.Sprintf("%s: %s", a.State, of)
}
