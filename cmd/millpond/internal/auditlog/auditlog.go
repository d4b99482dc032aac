// Package auditlog keeps the audit log: a file of JSON lines, to which the tool and pages append.
package auditlog

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Entry is a line: an action has begun, or how it has ended.
type Entry struct {
	At time.Time `json:"at"`
	// Event is started, stop, interrupted, done, stopped or failed.
	Event string `json:"event"`
	Who   string `json:"who"`
	// Action is the ID of the action, the same in all its lines.
	Action string `json:"action"`
	Kind   string `json:"kind"`
	Queue  string `json:"queue,omitempty"`
	// What describes the action in words. Filter names the messages; it is empty for all.
	What   string `json:"what"`
	Filter string `json:"filter,omitempty"`
	// Count are the messages that are meant, and Done those that were moved.
	Count  int    `json:"count"`
	Done   int    `json:"done"`
	Error  string `json:"error,omitempty"`
	Of     string `json:"of,omitempty"`
	Export string `json:"export,omitempty"`
}

// NewID returns the ID of an action, which sorts by time.
func NewID() string {
	random := make([]byte, 4)
	_, _ = rand.Read(random) // never fails
	return time.Now().UTC().Format("20060102-150405-") + hex.EncodeToString(random)
}

// Log is an audit log. Several processes may append to one file.
type Log struct{ file *os.File }

// Open opens a log of this user, through no link. It makes the file with the rights 0600.
func Open(name string) (*Log, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, err
	}
	f, err := OpenOwn(name, os.O_CREATE|os.O_APPEND|os.O_RDWR)
	if err != nil {
		return nil, err
	}
	return &Log{f}, nil
}

// patience bounds the wait for another process that appends a line.
const patience = 2 * time.Second

// Append writes a line, which is durable when it returns. A line that a kill has cut off gets its
// end before.
func (l *Log) Append(e Entry) error {
	turn, err := l.turn()
	if err != nil {
		return err
	}
	defer func() { _ = turn.Close() }()
	e.At = time.Now()
	line, _ := json.Marshal(e) // of plain values
	end, err := l.file.Seek(0, io.SeekEnd)
	last := []byte("\n")
	if err == nil && end > 0 {
		_, err = l.file.ReadAt(last, end-1)
	}
	if err != nil {
		return err
	}
	if line = append(line, '\n'); last[0] != '\n' {
		line = append([]byte("\n"), line...)
	}
	if _, err := l.file.Write(line); err != nil {
		return err
	}
	return l.file.Sync()
}

// turn locks the file until what it returns is closed. Processes that wait for it get it in the
// order in which they came. The caller holds a lock that all pages need, so a process that keeps
// the file is an error.
func (l *Log) turn() (*os.File, error) {
	// Of its own, because a lock that comes too late is given back while another turn may be on.
	f, err := OpenOwn(l.file.Name(), os.O_RDWR)
	if err != nil {
		return nil, err
	}
	locked, late := make(chan error), make(chan struct{})
	go func() {
		select {
		case locked <- await(f):
		case <-late:
			_ = f.Close()
		}
	}()
	select {
	case err = <-locked:
	case <-time.After(patience):
		close(late)
		return nil, fmt.Errorf("another process has locked %q for %v", f.Name(), patience)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Close closes the log.
func (l *Log) Close() error { return l.file.Close() }

// Read returns the entries of a log, the newest last. The error names lines that are none.
func Read(name string) (entries []Entry, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewReader(f)
	for n := 1; ; n++ {
		line, end := lines.ReadBytes('\n')
		if len(line) > 1 {
			var e Entry
			if failed := json.Unmarshal(line, &e); failed != nil {
				err = errors.Join(err, fmt.Errorf("%s: line %d is no entry: %w", name, n, failed))
			} else {
				entries = append(entries, e)
			}
		}
		if errors.Is(end, io.EOF) {
			return entries, err
		}
		if end != nil {
			return entries, errors.Join(err, end)
		}
	}
}
