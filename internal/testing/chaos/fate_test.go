package chaos

import (
	"testing"

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
			assert.Equal(t, o, Fates(7).Of(n, attempt), "the same whenever one asks")
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
