package chaos

import (
	"context"
	"fmt"
	"io"
	"slices"
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
func (s *state) await(ctx context.Context, what string, limit time.Duration,
	cond func() bool) error {
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

// quiet returns when all is accounted for, or when nothing has moved for four dead-letter timers:
// RabbitMQ 4.0.5 was seen to hold messages for more than two.
func (s *state) quiet(ctx context.Context) error {
	timer := s.timer()
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
		case time.Since(moved) > max(4*timer, minQuiet):
			s.say("nothing has moved for %s, %d messages missing", time.Since(moved).Round(time.Second),
				missing)
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
	s.history.Losses = s.witness.all()
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

// explain prints the history of the first messages that are lost or were handled too often, and
// where messages are.
func (s *state) explain(r Report) {
	const shown = 5
	for _, n := range r.Lost[:min(shown, len(r.Lost))] {
		s.story("lost", n)
	}
	for _, n := range r.unexplained[:min(shown, len(r.unexplained))] {
		s.story("unexplained", n)
	}
	for _, l := range s.history.Losses {
		if len(r.unexplained) > 0 {
			s.say("%s lost its %s at %s, by itself %t", l.Consumer, l.What, s.since(l.At), l.Own)
		}
	}
	for _, question := range [][]string{
		{"list_queues", "name", "messages", "messages_ready", "messages_unacknowledged", "consumers",
			"leader", "online"},
		{"list_consumers"},
	} {
		out, err := s.nemesis.cluster.Node(0).RunCtl(context.Background(), question...)
		if err != nil {
			out = err.Error()
		}
		s.say("rabbitmqctl %s:\n%s", strings.Join(question, " "), strings.TrimSpace(out))
	}
}

// story prints the history of a message.
func (s *state) story(what string, n int) {
	for _, sent := range s.history.Sent {
		if sent.N == n {
			s.say("%s %d: confirmed at %s, fails %d times", what, n, s.since(sent.At),
				s.history.Fates.Failures(n))
		}
	}
	attempts := slices.Clone(s.history.Attempts)
	slices.SortFunc(attempts, func(a, b Attempt) int { return a.At.Compare(b.At) })
	for _, a := range attempts {
		if a.N == n {
			s.say("%s %d: attempt %d, %s, by %s at %s, redelivered %t, aside %t, copy %q",
				what, n, a.Attempt, a.Outcome, a.Consumer, s.since(a.At), a.Redelivered, a.Aside, a.Nonce)
		}
	}
	for _, l := range s.history.Letters {
		if l.N == n {
			s.say("%s %d: dead letter, %s, at %s, copy %q", what, n, l.Reason, s.since(l.At), l.Nonce)
		}
	}
}

// since is a time since the run began, as text.
func (s *state) since(at time.Time) string { return at.Sub(s.started).Round(time.Millisecond).String() }

func (s *state) say(format string, args ...any) {
	s.out.Lock()
	defer s.out.Unlock()
	fmt.Fprintf(s.config.Out, "%7.1fs  %s\n", time.Since(s.started).Seconds(),
		fmt.Sprintf(format, args...))
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
