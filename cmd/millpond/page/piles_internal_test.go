package page

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/topology/operate"
)

// lookAt looks at n letters of a queue, of two causes.
func (s *letterStore) lookAt(queue string, n int) {
	p, room := s.begin(queue, "")
	for i := range n {
		p.add(operate.Letter{
			ID: fmt.Sprint(i), Queue: queue, Position: i + 1, DeadAt: time.UnixMilli(int64(i + 1)),
			Error:    []string{"refused", "no customer"}[i%2],
			Delivery: amqp.Delivery{Body: []byte(strings.Repeat("x", 20<<10))},
		}, room)
	}
	s.end(p)
}

// Given a letter with an impossible time, then it is counted, and its time is not known.
func TestImpossibleTime(t *testing.T) {
	t.Parallel()
	p := &pile{contents: map[int]operate.Letter{}}
	for _, at := range []time.Time{time.Unix(1<<48, 0), {}, time.UnixMilli(1), time.UnixMilli(9)} {
		p.add(operate.Letter{DeadAt: at}, &room{})
	}
	all, err := p.tallies(operate.Filter{}, 1, 9, nil)
	require.NoError(t, err)
	require.Equal(t, []int64{1, 9}, []int64{all[0].first, all[0].last})
	require.Equal(t, []int{4}, all[0].from)
}

// counted returns the letters of all looks that meet a filter, by cause.
func (s *letterStore) counted(t *testing.T, queues int, f operate.Filter) (map[string]int, int) {
	t.Helper()
	causes, left := map[string]int{}, 0
	for i := range queues {
		p := s.find(fmt.Sprint("queue-", i), "")
		require.NotNil(t, p, "queue-%d", i)
		more, err := p.chosen(f, func(s *stub, _ *detail) {
			causes[p.causes.values[s.cause].text]++
		})
		require.NoError(t, err)
		left += more
	}
	return causes, left
}

// The page has said "5 causes of 2 268 letters" of 4 840: beyond 16 MiB of payloads it forgot whole
// queues. Whatever is too much, every letter is counted with its cause.
func TestNoLookLosesItsCounts(t *testing.T) {
	t.Parallel()
	const queues, letters = 13, 200
	all := map[string]int{"refused": queues * letters / 2, "no customer": queues * letters / 2}
	s, kept := new(letterStore), 0
	for i := range queues {
		s.lookAt(fmt.Sprint("queue-", i), letters)
	}
	for _, p := range s.piles {
		kept += len(p.contents)
	}
	require.Less(t, kept, queues*letters, "more than is kept")
	require.NotZero(t, kept)
	found, left := s.counted(t, queues, operate.Filter{})
	require.Equal(t, all, found)
	require.Zero(t, left)

	// A look that has not ended.
	s.begin("queue-0", "")
	found, left = s.counted(t, queues, operate.Filter{})
	require.Equal(t, all, found)
	require.Equal(t, letters, left, "letters that no list has")
	found, _ = s.counted(t, 1, operate.Filter{
		Until: time.UnixMilli(101), Queues: []string{"queue-0"},
	})
	require.Equal(t, map[string]int{"refused": 50, "no customer": 50}, found)
}
