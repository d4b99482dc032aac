package chaos

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// Attempt is one call of a consumer's handler.
type Attempt struct {
	At          time.Time
	N, Attempt  int
	Outcome     Outcome
	Redelivered bool   // the broker says so
	Nonce       string // of the publish that this copy comes from; empty for the producer's
}

// line is what a consumer writes down before it answers.
func (a Attempt) line() string {
	nonce := a.Nonce
	if nonce == "" {
		nonce = "-"
	}
	return fmt.Sprintf("%d %d %d %s %t %s\n", a.At.UnixNano(), a.N, a.Attempt, a.Outcome, a.Redelivered, nonce)
}

func parseLine(line string) (Attempt, error) {
	f := strings.Fields(line)
	if len(f) != 6 {
		return Attempt{}, fmt.Errorf("a consumer's log has the line %q: want 6 fields", line)
	}
	at, err := strconv.ParseInt(f[0], 10, 64)
	if err != nil {
		return Attempt{}, fmt.Errorf("a consumer's log has the line %q: %w", line, err)
	}
	a := Attempt{At: time.Unix(0, at), Outcome: Outcome(f[3]), Redelivered: f[4] == "true"}
	if f[5] != "-" {
		a.Nonce = f[5]
	}
	if a.N, err = strconv.Atoi(f[1]); err == nil {
		a.Attempt, err = strconv.Atoi(f[2])
	}
	if err != nil {
		return Attempt{}, fmt.Errorf("a consumer's log has the line %q: %w", line, err)
	}
	return a, nil
}

// tail reads what is appended to a file. A line that is not complete is left for the next time.
type tail struct {
	name   string
	offset int64
}

func (t *tail) read() ([]Attempt, error) {
	f, err := os.Open(t.name)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Seek(t.offset, io.SeekStart); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	var attempts []Attempt
	for line := range bytes.Lines(data) {
		a, err := parseLine(string(line))
		if err != nil {
			return attempts, err
		}
		attempts = append(attempts, a)
	}
	t.offset += int64(len(data))
	return attempts, nil
}
