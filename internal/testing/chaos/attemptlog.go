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
	Consumer    string
	Began, At   time.Time // the call, and its end
	N, Attempt  int
	Outcome     Outcome
	Redelivered bool   // the broker says so
	Aside       bool   // the copy was set aside, which counts no attempt
	Nonce       string // of the publish that made this copy; empty for the producer's
}

// line returns the line that a consumer logs before it answers.
func (a Attempt) line() string {
	nonce := a.Nonce
	if nonce == "" {
		nonce = "-"
	}
	return fmt.Sprintf("%d %d %d %d %s %t %t %s\n",
		a.Began.UnixNano(), a.At.UnixNano(), a.N, a.Attempt, a.Outcome, a.Redelivered, a.Aside, nonce)
}

func parseLine(line string) (Attempt, error) {
	f := strings.Fields(line)
	if len(f) != 8 {
		return Attempt{}, fmt.Errorf("a consumer's log has the line %q: want 8 fields", line)
	}
	var numbers [4]int64
	for i := range numbers {
		var err error
		if numbers[i], err = strconv.ParseInt(f[i], 10, 64); err != nil {
			return Attempt{}, fmt.Errorf("a consumer's log has the line %q: %w", line, err)
		}
	}
	a := Attempt{
		Began: time.Unix(0, numbers[0]), At: time.Unix(0, numbers[1]),
		N: int(numbers[2]), Attempt: int(numbers[3]),
		Outcome: Outcome(f[4]), Redelivered: f[5] == "true", Aside: f[6] == "true",
	}
	if f[7] != "-" {
		a.Nonce = f[7]
	}
	return a, nil
}

// tail reads the lines that are appended to a file. It leaves an incomplete line for the next time.
type tail struct {
	consumer string
	name     string
	offset   int64
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
		a.Consumer = t.consumer
		attempts = append(attempts, a)
	}
	t.offset += int64(len(data))
	return attempts, nil
}
