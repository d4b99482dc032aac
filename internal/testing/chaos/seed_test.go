package chaos

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestFates(t *testing.T) {
	t.Parallel()
	const messages = 20_000
	seen := map[Outcome]int{}
	failures := map[int]int{}
	different := 0
	for n := range messages {
		f := Fates(7).Failures(n)
		failures[f]++
		for attempt := 1; attempt <= Limit+1; attempt++ {
			o := Fates(7).Of(n, attempt)
			assert.Equal(t, o, Fates(7).Of(n, attempt), "the same answer each time")
			if f >= 0 && f < Limit {
				assert.Equal(t, attempt > f, o == Handled, "message %d, attempt %d of %d failures", n, attempt,
					f)
			} else {
				assert.NotEqual(t, Handled, o)
				assert.True(t, Fates(7).Dies(n))
			}
			seen[o]++
			if o != Fates(8).Of(n, attempt) {
				different++
			}
		}
	}
	for _, o := range []Outcome{Handled, Failed, Panicked, Hung, Permanent} {
		assert.Greater(t, seen[o], messages/100, o)
	}
	for _, f := range []int{-1, 0, 1, 2, 3, Limit - 1, Limit} {
		assert.Greater(t, failures[f], messages/100, "messages with %d failures", f)
	}
	assert.Greater(t, different, messages, "another seed is another run")
}

func TestSchedule(t *testing.T) {
	t.Parallel()
	const d = 10 * time.Minute
	s := NewSchedule(1, d, 3, true)
	assert.Equal(t, s, NewSchedule(1, d, 3, true), "a seed is a schedule")
	assert.NotEqual(t, s, NewSchedule(2, d, 3, true))

	kinds := map[Kind]int{}
	for _, lane := range [][]Fault{s.Broker, s.Clients} {
		before := time.Duration(0)
		for _, f := range lane {
			kinds[f.Kind]++
			assert.Greater(t, f.At, before)
			assert.Less(t, f.At, d)
			before = f.At + f.Hold
		}
	}
	for _, kind := range Kinds {
		assert.Positive(t, kinds[kind], kind)
	}
	assert.GreaterOrEqual(t, kinds[KillNode], 10)
	assert.GreaterOrEqual(t, kinds[KillConsumer], 10)

	for _, f := range NewSchedule(1, d, 1, false).Broker {
		assert.NotContains(t, []Kind{
			KillMajority, Minority, PauseNode, DeleteExchange, DeleteBinding,
		}, f.Kind)
	}
}

func TestScheduleHasTheLongFaultsInFiveMinutes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		s := NewSchedule(seed, 5*time.Minute, 3, true)
		minorities, delays, pauses, disks, policies := 0, 0, 0, 0, 0
		for _, f := range slices.Concat(s.Broker, s.Clients) {
			switch f.Kind {
			case Minority:
				minorities++
				assert.GreaterOrEqual(t, f.Hold, 30*time.Second)
				assert.LessOrEqual(t, f.Hold, time.Minute)
				if f.Aim {
					assert.LessOrEqual(t, f.Hold, 40*time.Second, "frozen")
				}
			case DelayConfirms:
				delays++
				assert.GreaterOrEqual(t, f.Hold, 10*time.Second)
				assert.LessOrEqual(t, f.Hold, 40*time.Second)
			case PauseNode:
				pauses++
				assert.GreaterOrEqual(t, f.Hold, 20*time.Second)
			case DiskAlarm:
				disks++
			case ApplyPolicy:
				policies++
			default:
				assert.LessOrEqual(t, f.Hold, 12*time.Second)
			}
		}
		assert.Positive(t, minorities, "seed %d", seed)
		assert.GreaterOrEqual(t, delays, 2, "seed %d", seed)
		assert.Positive(t, pauses, "seed %d", seed)
		assert.Positive(t, disks, "seed %d", seed)
		assert.GreaterOrEqual(t, policies, 2, "seed %d", seed)
	}
}

func TestScheduleOfSomeKinds(t *testing.T) {
	t.Parallel()
	s := NewSchedule(1, 10*time.Minute, 3, true, DelayConfirms)
	assert.Empty(t, s.Broker)
	assert.Greater(t, len(s.Clients), 10)
	for _, f := range s.Clients {
		assert.Equal(t, DelayConfirms, f.Kind)
	}
}
