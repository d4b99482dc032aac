package chaos

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func after(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }

// flawless returns the history of messages that followed their fates, while nothing broke.
func flawless(messages int) History {
	h := History{Fates: 3}
	for n := range messages {
		at := float64(n) / 100
		h.Sent = append(h.Sent, Sent{n, after(at)})
		for attempt := 1; attempt <= Limit; attempt++ {
			o := h.Fates.Of(n, attempt)
			h.Attempts = append(h.Attempts, Attempt{
				Consumer: "c1", Began: after(at + float64(attempt)), At: after(at + float64(attempt)),
				N: n, Attempt: attempt, Outcome: o, Nonce: fmt.Sprint(n, "-", attempt),
				Priority: h.Fates.Priority(n),
			})
			if o == Handled {
				break
			}
			if o == Permanent || attempt == Limit {
				reason := map[bool]string{true: "permanent", false: "exhausted"}[o == Permanent]
				h.Letters = append(h.Letters, Letter{
					N: n, Nonce: fmt.Sprint(n, "-dead"), Reason: reason, At: after(at + 9),
				})
				break
			}
		}
	}
	return h
}

// find returns the first message that matches.
func find(t *testing.T, h History, matches func(n int) bool) int {
	t.Helper()
	for _, s := range h.Sent {
		if matches(s.N) {
			return s.N
		}
	}
	t.Fatal("no such message")
	return 0
}

// without drops the attempts of message n that drop picks.
func without(h History, n int, drop func(Attempt) bool) History {
	var kept []Attempt
	for _, a := range h.Attempts {
		if a.N != n || !drop(a) {
			kept = append(kept, a)
		}
	}
	h.Attempts = kept
	return h
}

func TestCheckOfAFlawlessRun(t *testing.T) {
	t.Parallel()
	r := Check(flawless(500))
	require.NoError(t, r.Err())
	assert.Equal(t, 500, r.Messages)
	assert.Equal(t, 500, r.Handled+r.Dead)
	assert.Positive(t, r.Dead)
	assert.Zero(t, r.Duplicates())
	assert.Zero(t, r.HandledAgain+r.DeadAgain+r.Both)
}

func TestCheckFindsALostMessage(t *testing.T) {
	t.Parallel()
	h := flawless(500)
	handled := find(t, h, func(n int) bool { return h.Fates.Failures(n) == 2 })
	r := Check(without(h, handled, func(a Attempt) bool { return a.Outcome == Handled }))
	assert.Equal(t, []int{handled}, r.Lost)
	assert.ErrorContains(t, r.Err(), fmt.Sprintf("1 of the confirmed messages are lost: %d", handled))

	h = flawless(500)
	dead := h.Letters[0].N
	h.Letters = h.Letters[1:]
	assert.Equal(t, []int{dead}, Check(h).Lost)

	h = flawless(500)
	h.Sent = append(h.Sent, Sent{N: 500, At: start})
	assert.Equal(t, []int{500}, Check(h).Lost, "no handler has seen it")
	assert.Error(t, Check(History{}).Err(), "an empty run proves nothing")
}

func TestCheckFindsAttemptsThatShouldNotBe(t *testing.T) {
	t.Parallel()
	h := flawless(500)
	n := find(t, h, func(n int) bool { return h.Fates.Failures(n) == 3 })
	h.Attempts = append(h.Attempts, Attempt{At: after(99), N: n, Attempt: Limit + 1, Outcome: Failed})
	r := Check(h)
	assert.Equal(t, []string{fmt.Sprintf("message %d: attempt %d", n, Limit+1)}, r.Beyond)
	assert.Equal(t, []string{fmt.Sprintf("message %d: attempt %d", n, Limit)}, r.Skipped)
	require.Error(t, r.Err())

	h = flawless(500)
	r = Check(without(h, n, func(a Attempt) bool { return a.Attempt == 2 }))
	assert.Equal(t, []string{fmt.Sprintf("message %d: attempt 2", n)}, r.Skipped)
	assert.ErrorContains(t, r.Err(), "without a call")
}

func TestCheckFindsAChangedPriority(t *testing.T) {
	t.Parallel()
	h := flawless(500)
	h.Attempts[7].Priority = (h.Attempts[7].Priority + 1) % 10
	assert.Len(t, Check(h).Reprioritized, 1)
	assert.ErrorContains(t, Check(h).Err(), "1 attempts with another priority")
}

func TestCheckFindsAMissingMessageOfAnotherService(t *testing.T) {
	t.Parallel()
	h := flawless(500)
	h.Missing = []string{"crowd.0007"}
	assert.ErrorContains(t, Check(h).Err(), "without their message: crowd.0007")
}

func TestCheckCountsEnds(t *testing.T) {
	t.Parallel()
	h := flawless(500)
	n := find(t, h, func(n int) bool { return h.Fates.Failures(n) == 1 })
	h.Attempts = append(h.Attempts,
		Attempt{
			Consumer: "c1", Began: after(90), At: after(90), N: n, Attempt: 1, Outcome: Failed,
			Redelivered: true, Nonce: fmt.Sprint(n, "-1"),
		},
		Attempt{
			Consumer: "c1", Began: after(91), At: after(91), N: n, Attempt: 2, Outcome: Handled,
			Nonce: fmt.Sprint(n, "-2"),
		},
		Attempt{
			Consumer: "c1", Began: after(92), At: after(92), N: n, Attempt: 2, Outcome: Handled,
			Nonce: "another",
		})
	h.Letters = append(h.Letters, h.Letters[0])
	r := Check(h)
	assert.Equal(t, map[string]Count{
		Redelivered: {Unexplained: 1}, SentTwice: {Unexplained: 1}, Follows: {Explained: 1},
		TwoLetters: {Unexplained: 1},
	}, r.Again)
	assert.Equal(t, Count{Explained: 1, Unexplained: 3}, r.Duplicates())
	assert.Equal(t, 2, r.HandledAgain)
	assert.Equal(t, 1, r.DeadAgain)
	assert.Contains(t, r.String(), "follows from an attempt made again: 1 explained, 0 unexplained")
}

func TestCheckFindsMisplacedDeadLetters(t *testing.T) {
	t.Parallel()
	h := flawless(500)
	n := find(t, h, func(n int) bool { return h.Fates.Failures(n) == 0 })
	h.Letters = append(h.Letters, Letter{N: n, Nonce: "a", Reason: "crash_loop"})
	r := Check(h)
	require.NoError(t, r.Err(), "killed too often")
	assert.Equal(t, 1, r.CrashLoops)
	assert.Equal(t, 1, r.Both)

	h.Letters = append(h.Letters, Letter{N: n, Nonce: "b", Reason: "exhausted"})
	assert.Equal(t, []string{fmt.Sprintf("message %d: exhausted", n)}, Check(h).Misplaced)
	require.Error(t, Check(h).Err())
	h = flawless(500)
	h.Broken = []string{"?"}
	require.Error(t, Check(h).Err())
}

func TestCheckMeasuresLateness(t *testing.T) {
	t.Parallel()
	h := flawless(500)
	n := find(t, h, func(n int) bool { return h.Fates.Failures(n) == 1 })
	for i, a := range h.Attempts {
		if a.N == n && a.Attempt == 2 {
			h.Attempts[i].At = a.At.Add(time.Minute)
		}
	}
	r := Check(h)
	assert.Equal(t, time.Minute, r.Latest, "the delay of a second is not part of it")
	assert.Equal(t, fmt.Sprintf("message %d: attempt 2", n), r.LatestRetry)
}

func TestCheckMeasuresRecovery(t *testing.T) {
	t.Parallel()
	h := History{
		Sent: []Sent{{1, after(1)}, {2, after(11)}, {3, after(12)}},
		Attempts: []Attempt{
			{At: after(30), N: 1, Attempt: 1, Outcome: Handled}, // published before the end of the fault
			{At: after(14), N: 2, Attempt: 1, Outcome: Handled},
			{At: after(13), N: 3, Attempt: 1, Outcome: Handled},
		},
		Faults: []Struck{
			{Fault: Fault{Kind: KillNode}, Begun: after(5), End: after(10)},
			{Fault: Fault{Kind: RaiseAlarm}, Begun: after(5), End: after(5), Err: fmt.Errorf("no")},
		},
	}
	r := Check(h)
	assert.Equal(t, 3*time.Second, r.Recovery)
	assert.Equal(t, map[Kind]int{KillNode: 1}, r.Faults)
	assert.Len(t, r.Failed, 1)
	assert.Contains(t, r.String(), "not done")
}
