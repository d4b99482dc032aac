package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// kind is the kind of an event.
type kind string

const (
	begun   kind = "begin"  // of a handling
	ended   kind = "end"    // of a handling
	struck  kind = "fault"  // the nemesis is about to do something
	decided kind = "decide" // the operator is about to release or to replay a blocked key
)

// outcome is the end of a handling.
type outcome string

const (
	handled outcome = "handled"
	failed  outcome = "failed"
	gaveUp  outcome = "gave-up" // the last attempt has failed
)

// event is a line of the log. Its place in the log says when it happened: all processes append to
// one file, and an append returns before the process goes on. So an event that another one has
// caused, through the broker as well, stands behind that one. No clock is compared for the order.
type event struct {
	kind     kind
	at       time.Time // for delays and figures
	instance string
	call     uint64 // the number of the handling in its process
	msg      id
	attempt  int
	epoch    uint64
	outcome  outcome // of an end, or a decision
	// over says that the context of the message had ended: its connection was lost.
	over  bool
	fault fault // of a fault; without an instance it strikes all of them
}

// eventSize is the length of every line. A write that crosses the boundary of a page can be cut in
// two by a kill -9. Lines of this length cross none.
const eventSize = 128

// eventLog is the file to which all processes append. An appended line survives a kill -9.
type eventLog struct{ file *os.File }

func openLog(name string) (*eventLog, error) {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return &eventLog{f}, err
}

// append writes the event by one write(2).
func (l *eventLog) append(e event) error {
	line := fmt.Sprintf("%s %d %s %d %d %d %d %d %s %t %s", e.kind, e.at.UnixNano(),
		word(e.instance), e.call, e.msg.key, e.msg.n, e.attempt, e.epoch, word(string(e.outcome)),
		e.over, word(string(e.fault)))
	if len(line) >= eventSize {
		return fmt.Errorf("the event %q is longer than %d bytes", line, eventSize-1)
	}
	_, err := fmt.Fprintf(l.file, "%-*s\n", eventSize-1, line)
	return err
}

// close needs no check: each append was checked.
func (l *eventLog) close() { _ = l.file.Close() }

// word makes one field of a text.
func word(text string) string {
	if text == "" {
		return "-"
	}
	return strings.ReplaceAll(text, " ", "_")
}

// unword returns the text of a field.
func unword(field string) string {
	if field == "-" {
		return ""
	}
	return strings.ReplaceAll(field, "_", " ")
}

// errEvent means that the log has a line that no process writes.
var errEvent = errors.New("the log of events cannot be read")

func parseEvent(line string) (e event, err error) {
	f := strings.Fields(line)
	if len(f) != 11 {
		return e, fmt.Errorf("%w: %q: want 11 fields", errEvent, line)
	}
	number := func(text string) (n int64) {
		n, parseErr := strconv.ParseInt(text, 10, 64)
		err = errors.Join(err, parseErr)
		return n
	}
	e = event{
		kind: kind(f[0]), at: time.Unix(0, number(f[1])), instance: unword(f[2]),
		call: uint64(number(f[3])), msg: id{int(number(f[4])), int(number(f[5]))},
		attempt: int(number(f[6])), epoch: uint64(number(f[7])), outcome: outcome(unword(f[8])),
		over: f[9] == "true", fault: fault(unword(f[10])),
	}
	if err != nil {
		return e, fmt.Errorf("%w: %q: %w", errEvent, line, err)
	}
	return e, nil
}

// reader reads the events that are appended to a log.
type reader struct {
	file *os.File
	rest []byte // of a line that is not complete yet
}

func readLog(name string) (*reader, error) {
	f, err := os.Open(name)
	return &reader{file: f}, err
}

// next returns the events since the last call.
func (r *reader) next() (events []event, err error) {
	data, err := io.ReadAll(r.file)
	if err != nil {
		return nil, err
	}
	data = append(r.rest, data...)
	whole := bytes.LastIndexByte(data, '\n') + 1
	r.rest = bytes.Clone(data[whole:])
	for line := range bytes.Lines(data[:whole]) {
		e, err := parseEvent(string(line))
		if err != nil {
			return events, err
		}
		events = append(events, e)
	}
	return events, nil
}

func (r *reader) close() { _ = r.file.Close() }
