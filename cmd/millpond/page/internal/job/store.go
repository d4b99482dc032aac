package job

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// The files in a folder.
const (
	journalName = "actions.jsonl"
	auditName   = "audit.jsonl"
	lockName    = "lock"
	// maxJournal is the size from which the journal is written anew.
	maxJournal = 8 << 20
)

// store keeps the journal and the audit log: JSON lines, each durable when its function returns. A
// line of the journal is an Action; the last one of each ID counts. The methods of a nil store keep
// nothing. The caller has a lock.
type store struct {
	folder        string
	lock          *os.File
	journal, logs *os.File
	last          map[string][]byte // the last line of each action, in the order of ids
	ids           []string
	size          int
}

// openStore returns the actions of the journal, oldest first.
func openStore(folder string) (*store, []Action, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, nil, err
	}
	s := &store{folder: folder}
	lock, err := lockFile(filepath.Join(folder, lockName))
	if err != nil {
		return nil, nil, err
	}
	s.lock = lock
	known, err := s.read()
	if err == nil {
		s.logs, err = openAppend(filepath.Join(folder, auditName))
	}
	if err != nil {
		_ = s.close()
		return nil, nil, err
	}
	return s, known, nil
}

// openAppend opens a file for lines. A line that a kill has cut off gets its end.
func openAppend(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	end, err := f.Seek(0, io.SeekEnd)
	last := make([]byte, 1)
	if err == nil && end > 0 {
		if _, err = f.ReadAt(last, end-1); err == nil && last[0] != '\n' {
			_, err = f.WriteString("\n")
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// read reads the journal. A kill cuts off at most its last line, which was not durable yet.
func (s *store) read() ([]Action, error) {
	f, err := os.Open(filepath.Join(s.folder, journalName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var known []Action
	lines := bufio.NewReader(f)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return known, nil
		}
		if err != nil {
			return nil, err
		}
		var a Action
		if err := json.Unmarshal(line, &a); err != nil || a.ID == "" {
			return nil, fmt.Errorf("line %d of %q is not a line of a journal: move the file away: %w",
				number, journalName, err)
		}
		i := slices.IndexFunc(known, func(k Action) bool { return k.ID == a.ID })
		if i < 0 {
			i, known = len(known), append(known, a)
		}
		known[i] = a
	}
}

// compact writes the journal anew, with the newest of these actions.
func (s *store) compact(known []Action) error {
	s.ids, s.last = nil, map[string][]byte{}
	for _, a := range known[max(0, len(known)-maxActions):] {
		line, err := json.Marshal(a)
		if err != nil {
			return err
		}
		s.keep(a.ID, append(line, '\n'))
	}
	return s.rewrite()
}

// keep remembers the last line of an action, and forgets the oldest.
func (s *store) keep(id string, line []byte) {
	if s.last[id] == nil {
		s.ids = append(s.ids, id)
	}
	s.last[id] = line
	for len(s.ids) > maxActions {
		delete(s.last, s.ids[0])
		s.ids = s.ids[1:]
	}
}

// rewrite replaces the journal by the last line of each action.
func (s *store) rewrite() error {
	name := filepath.Join(s.folder, journalName)
	fresh, err := os.OpenFile(name+".new", os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	var all bytes.Buffer
	for _, id := range s.ids {
		all.Write(s.last[id])
	}
	_, err = fresh.Write(all.Bytes())
	err = errors.Join(err, fresh.Sync(), os.Rename(name+".new", name), syncFolder(s.folder))
	if err != nil {
		return errors.Join(err, fresh.Close())
	}
	if s.journal != nil {
		_ = s.journal.Close() // every line of it was synced
	}
	s.journal, s.size = fresh, all.Len()
	return nil
}

// syncFolder makes the names of new files durable.
func syncFolder(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// note writes an action to the journal.
func (s *store) note(a *Action) error {
	a.Noted = time.Now()
	if s == nil {
		return nil
	}
	line, err := json.Marshal(a)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	s.keep(a.ID, line)
	if s.size += len(line); s.size > maxJournal {
		return s.rewrite()
	}
	return write(s.journal, line)
}

func write(f *os.File, line []byte) error {
	if _, err := f.Write(line); err != nil {
		return err
	}
	return f.Sync()
}

// audit writes a line to the audit log: who did what, to how many messages.
func (s *store) audit(event, who string, a *Action) error {
	if s == nil {
		return nil
	}
	line, err := json.Marshal(struct {
		At     time.Time `json:"at"`
		Event  string    `json:"event"`
		Who    string    `json:"who"`
		Action string    `json:"action"`
		Kind   Kind      `json:"kind"`
		Queue  string    `json:"queue"`
		What   string    `json:"what"`
		Count  int       `json:"count"`
		Done   int       `json:"done"`
		Error  string    `json:"error,omitempty"`
		Of     string    `json:"of,omitempty"`
		Export string    `json:"export,omitempty"`
	}{
		time.Now(), event, who, a.ID, a.Request.Kind, a.Request.Queue, a.Words, a.Count,
		a.Progress.Done, a.Error, a.Request.Of, a.Export,
	})
	if err != nil {
		return err
	}
	return write(s.logs, append(line, '\n'))
}

// export makes the file for the letters of a discard.
func (s *store) export(id string) (*os.File, error) {
	folder := filepath.Join(s.folder, "discarded")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	name := filepath.Join(folder, id+".jsonl")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(syncFolder(folder), syncFolder(s.folder)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (s *store) close() error {
	if s == nil {
		return nil
	}
	var errs []error
	for _, f := range []*os.File{s.journal, s.logs, s.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
