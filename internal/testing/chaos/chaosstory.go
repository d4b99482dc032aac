package chaos

import (
	"context"
	"slices"
	"strings"
	"time"
)

// explain prints the history of the first messages that are lost or were handled too often, and the
// queues with their messages.
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
		{
			"list_queues", "name", "messages", "messages_ready", "messages_unacknowledged", "consumers",
			"leader", "online",
		},
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

// since returns the time since the run began, as text.
func (s *state) since(at time.Time) string {
	return at.Sub(s.started).Round(time.Millisecond).String()
}
