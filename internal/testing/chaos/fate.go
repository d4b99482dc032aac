package chaos

import "time"

// Delays are what a failed message waits before its second attempt, its third, and so on. The last
// is rare, so that its wait queue can be emptied and deleted without stopping everything.
var Delays = []time.Duration{time.Second, 2 * time.Second, time.Second, 4 * time.Second}

// Limit is how many attempts a message has.
var Limit = len(Delays) + 1

// Outcome is what one attempt comes to.
type Outcome string

// The outcomes of an attempt. All but Handled are failures.
const (
	Handled   Outcome = "ok"
	Failed    Outcome = "error"
	Panicked  Outcome = "panic"
	Hung      Outcome = "hang" // for a second or two, then an error
	Permanent Outcome = "permanent"
)

// Fates knows from a seed what becomes of every message, whoever asks and however often.
type Fates uint64

// Failures is how many attempts of message n fail before one succeeds; Limit if none does, -1 if it
// fails permanently at once.
func (f Fates) Failures(n int) int {
	switch roll := f.roll(n, 0) % 100; {
	case roll < 60:
		return 0
	case roll < 88:
		return 1 + int(f.roll(n, -1)%3)
	case roll < 92:
		return Limit - 1
	case roll < 97:
		return Limit
	}
	return -1
}

// Of is the outcome of an attempt, counted from 1, of message n.
func (f Fates) Of(n, attempt int) Outcome {
	failures := f.Failures(n)
	switch {
	case failures < 0:
		return Permanent
	case attempt > failures && failures < Limit:
		return Handled
	}
	switch roll := f.roll(n, attempt) % 100; {
	case roll < 65:
		return Failed
	case roll < 90:
		return Panicked
	}
	return Hung
}

// Dies tells whether message n ends as a dead letter.
func (f Fates) Dies(n int) bool {
	failures := f.Failures(n)
	return failures < 0 || failures >= Limit
}

// roll mixes seed, message and attempt, as SplitMix64 does.
func (f Fates) roll(n, attempt int) uint64 {
	x := uint64(f)
	for _, v := range []int{n, attempt} {
		x += uint64(int64(v)) + 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return x
}
