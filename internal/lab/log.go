package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"
)

// kind is the kind of an event.
type kind string

const (
	sent    kind = "sent"   // a message is confirmed to its producer
	begun   kind = "begin"  // of a handling
	ended   kind = "end"    // of a handling
	letter  kind = "letter" // a dead letter was read
	decided kind = "decide" // the operator is about to release or to replay a blocked key
	struck  kind = "fault"  // a fault is about to strike, or strikes on
	over    kind = "over"   // a fault has ended
	lost    kind = "lost"   // an instance has lost something: Text says what
	gone    kind = "gone"   // an instance has ended
	healed  kind = "healed" // all faults are over
	sampled kind = "sample" // of figures
	stood   kind = "stood"  // a queue stands still: Text says which
)

// outcome is the end of a handling, or a decision of the operator.
type outcome string

const (
	handled  outcome = "handled"
	failed   outcome = "failed"
	gaveUp   outcome = "gave up" // no attempt follows
	released outcome = "release" // the key goes on without its letter
	replayed outcome = "replay"  // the letter is handled in its place
)

// event is a line of the log. Its place in the log says when it happened: all processes append to
// one file, and an append returns before the process goes on. So an event that another one has
// caused, through the broker as well, stands behind that one. No clock is compared for the order.
type event struct {
	Kind kind      `json:"k"`
	At   time.Time `json:"t"`
	// Who is an instance, or an instance and a line: i7/shared.
	Who  string `json:"i,omitempty"`
	Call uint64 `json:"c,omitempty"` // the number of the handling in its process
	id
	Attempt     int                `json:"a,omitempty"`
	Epoch       uint64             `json:"e,omitempty"`
	Outcome     outcome            `json:"o,omitempty"`
	Copy        string             `json:"d,omitempty"` // the nonce; empty for the producer's
	Redelivered bool               `json:"r,omitempty"` // the broker says so
	Aside       bool               `json:"s,omitempty"` // the copy was set aside, not tried
	Probe       bool               `json:"x,omitempty"` // the brake was stopped
	Priority    int                `json:"p,omitempty"` // as the handler sees it
	Fault       faultKind          `json:"f,omitempty"` // without Who it strikes all instances
	Text        string             `json:"w,omitempty"`
	Failed      bool               `json:"z,omitempty"`  // the fault could not be done
	Began       time.Time          `json:"b,omitzero"`   // of a loss, or of a fault that is over
	Own         bool               `json:"y2,omitempty"` // the client ended its connection itself
	Figures     map[string]float64 `json:"g,omitempty"`
}

// instanceOf returns the instance in the name of an instance and a line.
func instanceOf(who string) string { name, _, _ := strings.Cut(who, "/"); return name }

// eventSize is the length of every line. A write that crosses the boundary of a page can be cut in
// two by a kill -9. Lines of this length cross none.
const eventSize = 256

// eventLog is the file to which all processes append. An appended line survives a kill -9.
type eventLog struct {
	file *os.File
	read int64 // the bytes that next has read
}

func openLog(name string) (*eventLog, error) {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	return &eventLog{file: f}, err
}

// append writes the event by one write(2), at the time of now if it has none.
func (l *eventLog) append(e event) error {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	const longest = 60
	if len(e.Text) > longest {
		e.Text = strings.ToValidUTF8(e.Text[:longest], "")
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if len(line) >= eventSize {
		return fmt.Errorf("the event %s is longer than %d bytes", line, eventSize-1)
	}
	_, err = fmt.Fprintf(l.file, "%s%*s", line, eventSize-len(line), "\n")
	return err
}

// next returns the events since the last call.
func (l *eventLog) next() (events []event, err error) {
	data, err := io.ReadAll(io.NewSectionReader(l.file, l.read, math.MaxInt64-l.read))
	for ; len(data) >= eventSize && err == nil; data = data[eventSize:] {
		var e event
		if failed := json.Unmarshal(data[:eventSize], &e); failed != nil {
			return events, fmt.Errorf("an event of the log: %q: %w", data[:eventSize], failed)
		}
		events = append(events, e)
		l.read += eventSize
	}
	return events, err
}

// close needs no check: each append was checked.
func (l *eventLog) close() { _ = l.file.Close() }
