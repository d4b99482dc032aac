package rig

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// Logs is a logger that keeps its lines. It may be used concurrently.
type Logs struct {
	verbose bool // debug and trace too
	mu      sync.Mutex
	entries []LogEntry
	lines   []string // of the entries, as far as somebody has asked
}

// LogEntry is one line of a log.
type LogEntry struct {
	Msg    string
	Err    error
	Fields watermill.LogFields

	at    time.Time
	level string
}

// All returns the entries so far, in their order.
func (l *Logs) All() []LogEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries)
}

// EntriesOf returns the entries with this message, in their order.
func (l *Logs) EntriesOf(msg string) []LogEntry {
	return slices.DeleteFunc(l.All(), func(e LogEntry) bool { return e.Msg != msg })
}

// About returns the entries that carry a message id, in their order.
func (l *Logs) About(id string) []LogEntry {
	return slices.DeleteFunc(l.All(), func(e LogEntry) bool { return e.Fields["message_id"] != id })
}

// Text returns the log so far, a line for each entry.
func (l *Logs) Text() string {
	return strings.Join(l.text(), "\n")
}

// text returns the lines so far. Most entries are never read, so they are not written before.
func (l *Logs) text() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries[len(l.lines):] {
		l.lines = append(l.lines, fmt.Sprintf("%s %s %s err=%v %v", e.at.Format("15:04:05.000"),
			e.level, e.Msg, e.Err, e.Fields))
	}
	return l.lines
}

// Said counts the occurrences of a text.
func (l *Logs) Said(text string) int { return strings.Count(l.Text(), text) }

// Saying returns the lines that contain a text, without their time.
func (l *Logs) Saying(text string) []string {
	var found []string
	for _, line := range l.text() {
		if _, line, _ := strings.Cut(line, " "); strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// Dump writes the log to the output of a test. A long one has a gap.
func (l *Logs) Dump(t testing.TB) {
	t.Helper()
	const first, last = 20, 60
	lines := l.text()
	if gap := len(lines) - first - last; gap > 0 {
		lines = slices.Concat(lines[:first], []string{fmt.Sprintf("… %d lines …", gap)},
			lines[len(lines)-last:])
	}
	t.Log(strings.Join(lines, "\n"))
}

func (l *Logs) log(level, msg string, err error, fields watermill.LogFields) {
	if !l.verbose && (level == "debug" || level == "trace") {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries,
		LogEntry{Msg: msg, Err: err, Fields: fields, at: time.Now(), level: level})
}

// The methods of watermill.LoggerAdapter.

func (l *Logs) Error(msg string, err error, f watermill.LogFields) { l.log("error", msg, err, f) }
func (l *Logs) Info(msg string, f watermill.LogFields)             { l.log("info", msg, nil, f) }
func (l *Logs) Debug(msg string, f watermill.LogFields)            { l.log("debug", msg, nil, f) }
func (l *Logs) Trace(msg string, f watermill.LogFields)            { l.log("trace", msg, nil, f) }

func (l *Logs) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return withFields{l, fields}
}

type withFields struct {
	logs   *Logs
	fields watermill.LogFields
}

func (w withFields) Error(msg string, err error, f watermill.LogFields) {
	w.logs.Error(msg, err, w.fields.Add(f))
}
func (w withFields) Info(msg string, f watermill.LogFields)  { w.logs.Info(msg, w.fields.Add(f)) }
func (w withFields) Debug(msg string, f watermill.LogFields) { w.logs.Debug(msg, w.fields.Add(f)) }
func (w withFields) Trace(msg string, f watermill.LogFields) { w.logs.Trace(msg, w.fields.Add(f)) }

func (w withFields) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return withFields{w.logs, w.fields.Add(fields)}
}
