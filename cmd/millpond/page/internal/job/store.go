package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
)

// The folder has the journal, with a file for each action, the letters that were discarded, the
// audit log and the lock.
const (
	journalName   = "actions"
	discardedName = "discarded"
	auditName     = "audit.jsonl"
	lockName      = "lock"
)

// store keeps the journal, durable when its function returns. The methods of a nil store keep
// nothing. The caller has a lock.
type store struct {
	folder string
	lock   *os.File
}

// openStore returns the newest actions of the journal, oldest first, and removes the others.
func openStore(folder string) (s *store, known []Action, err error) {
	for _, name := range []string{"", journalName, discardedName} {
		name = filepath.Join(folder, name) // without a slash at the end, which would follow a link
		if err := os.MkdirAll(name, 0o700); err != nil {
			return nil, nil, err
		}
		own, err := auditlog.OpenOwn(name, os.O_RDONLY)
		if err != nil {
			return nil, nil, err
		}
		_ = own.Close()
	}
	s = &store{folder: folder}
	s.lock, err = auditlog.OpenOwn(filepath.Join(folder, lockName), os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, nil, err
	}
	if err := auditlog.Lock(s.lock); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%w: %w", ErrLocked, err), s.lock.Close())
	}
	names, err := filepath.Glob(s.fileOf("*"))
	for _, name := range names {
		var a Action
		f, readErr := auditlog.OpenOwn(name, os.O_RDONLY)
		if readErr == nil {
			readErr = json.NewDecoder(f).Decode(&a)
			_ = f.Close()
		}
		if readErr != nil {
			err = errors.Join(err, fmt.Errorf("%q is no action: move the file away: %w", name, readErr))
		}
		known = append(known, a)
	}
	slices.SortFunc(known, func(a, b Action) int { return a.Rehearsed.Compare(b.Rehearsed) })
	for old := len(known) - maxActions; err == nil && old > 0; old-- {
		err, known = os.Remove(s.fileOf(known[0].ID)), known[1:]
	}
	if err != nil {
		_ = s.close()
		return nil, nil, err
	}
	return s, known, nil
}

func (s *store) fileOf(id string) string { return filepath.Join(s.folder, journalName, id+".json") }

// syncFolder makes the names of new files durable.
func syncFolder(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// note writes an action to the journal, with the time.
func (s *store) note(a *Action) error {
	a.Noted = time.Now()
	return s.put(a)
}

// put writes an action to the journal. If the process is killed, the entry before stays whole.
func (s *store) put(a *Action) error {
	if s == nil {
		return nil
	}
	line, err := json.Marshal(a)
	if err != nil {
		return err
	}
	name := s.fileOf(a.ID)
	if err := os.Remove(name + ".new"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(name+".new", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(line)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return errors.Join(os.Rename(name+".new", name), syncFolder(filepath.Dir(name)))
}

// export makes the file for the letters of a discard.
func (s *store) export(id string) (*os.File, error) {
	folder := filepath.Join(s.folder, discardedName)
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
	return s.lock.Close()
}
