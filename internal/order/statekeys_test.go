package order_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/order"
)

// Given more blocked keys than an answer has, then a key that is asked for is in it, by its name or
// its mark.
func TestAnAnswerHasTheKeyThatIsAskedFor(t *testing.T) {
	t.Parallel()
	sorted := func(name string) (s order.State) {
		for i := range order.MaxKeys + 500 {
			s.Keys = append(s.Keys, order.KeyState{
				Key: fmt.Sprintf("key %04d", i), Mark: fmt.Sprintf("1-%d", i),
			})
		}
		s.Sort(name)
		return s
	}
	for name, want := range map[string]struct {
		keys, others int
		last         string
	}{
		"":         {1000, 500, "key 0999"},
		"key 0007": {1000, 500, "key 0999"},
		"key 1400": {1001, 499, "key 1400"},
		"1-1400":   {1001, 499, "key 1400"},
		"no key":   {1000, 500, "key 0999"},
	} {
		s := sorted(name)
		require.Len(t, s.Keys, want.keys, name)
		require.Equal(t, want.others, s.Others, name)
		require.Equal(t, want.last, s.Keys[len(s.Keys)-1].Key, name)
		require.Equal(t, name != "", s.Named)
	}
}
