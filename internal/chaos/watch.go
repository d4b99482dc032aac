package chaos

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// look prints how far things are.
func (s *state) look() {
	confirmed := len(s.making.confirmed())
	s.say("… %d confirmed, %d not, %d dead letters, %d consumers ended by themselves",
		confirmed, s.making.unknown.Load(), len(s.dead.all()), s.fleet.ended.Load())
}

// await reads the logs until cond is true.
func (s *state) await(ctx context.Context, what string, limit time.Duration, cond func() bool) error {
	for deadline := time.Now().Add(limit); ; {
		if _, err := s.read(); err != nil {
			return err
		}
		if cond() {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %s for %s", limit, what)
		}
		if !rest(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// minQuiet is for timers that are shorter than a busy machine is slow.
const minQuiet = 10 * time.Second

// quiet returns when all is accounted for, or when nothing has moved for two dead-letter timers.
func (s *state) quiet(ctx context.Context) error {
	timer := s.config.Timer
	if timer == 0 {
		timer = DeadLetterTimer
	}
	begun, moved, said := time.Now(), time.Now(), time.Now()
	before := -1
	for {
		news, err := s.read()
		if err != nil {
			return err
		}
		missing := s.missing()
		if news > 0 || missing != before {
			moved, before = time.Now(), missing
		}
		switch {
		case missing == 0:
			s.say("all accounted for %s after the last confirm", time.Since(begun).Round(time.Second))
			return nil
		case time.Since(moved) > max(2*timer+timer/10, minQuiet):
			s.say("nothing has moved for %s, %d messages missing", time.Since(moved).Round(time.Second), missing)
			return nil
		case time.Since(said) > 20*time.Second:
			said = time.Now()
			s.say("quiet: %d messages missing", missing)
		}
		if !rest(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// read takes in what is new, and returns how much that is.
func (s *state) read() (news int, err error) {
	for _, t := range s.tails {
		attempts, err := t.read()
		if err != nil {
			return news, err
		}
		news += len(attempts)
		s.history.Attempts = append(s.history.Attempts, attempts...)
		for _, a := range attempts {
			if a.Outcome == Handled {
				s.handled[a.N] = true
			}
		}
	}
	letters := s.dead.all()
	news += len(letters) - len(s.history.Letters)
	s.history.Letters, s.history.Sent = letters, s.making.confirmed()
	s.dead.mu.Lock()
	s.history.Broken = s.dead.broken
	s.dead.mu.Unlock()
	s.nemesis.mu.Lock()
	s.history.Faults = s.nemesis.struck
	s.nemesis.mu.Unlock()
	return news, nil
}

// missing is how many confirmed messages are neither handled nor dead letters.
func (s *state) missing() int {
	dead := map[int]bool{}
	for _, l := range s.history.Letters {
		dead[l.N] = true
	}
	missing := 0
	for _, sent := range s.history.Sent {
		if !s.handled[sent.N] && !dead[sent.N] {
			missing++
		}
	}
	return missing
}

// explain prints what is known of the first lost messages, and where messages are.
func (s *state) explain(r Report) {
	const shown = 5
	for i, n := range r.Lost {
		if i == shown {
			break
		}
		for _, sent := range s.history.Sent {
			if sent.N == n {
				s.say("lost %d: confirmed at %s, fails %d times", n, sent.At.Sub(s.started).Round(time.Millisecond), s.history.Fates.Failures(n))
			}
		}
		for _, a := range s.history.Attempts {
			if a.N == n {
				s.say("lost %d: attempt %d, %s, at %s, redelivered %t", n, a.Attempt, a.Outcome, a.At.Sub(s.started).Round(time.Millisecond), a.Redelivered)
			}
		}
	}
	out, err := s.nemesis.cluster.Node(0).RunCtl(context.Background(), "list_queues", "name", "messages", "messages_ready", "messages_unacknowledged")
	if err != nil {
		out = err.Error()
	}
	s.say("the queues:\n%s", strings.TrimSpace(out))
}

func (s *state) say(format string, args ...any) {
	s.out.Lock()
	defer s.out.Unlock()
	fmt.Fprintf(s.config.Out, "%7.1fs  %s\n", time.Since(s.started).Seconds(), fmt.Sprintf(format, args...))
}

// locked is a writer for many goroutines and processes.
type locked struct {
	w  io.Writer
	mu *sync.Mutex
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
