package operate_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/operate"
)

var errBad = errors.New("no such customer")

// shop is a service behind a box, whose handler fails as it is told.
type shop struct {
	mu      sync.Mutex
	fails   func(body string) error
	calls   []time.Time
	handled map[string]int
	failed  []time.Time
}

// soon is the delay of the retries of a service that does not let its messages wait for long.
const soon = 200 * time.Millisecond

// serve starts a service on the box's queue. It retries after each of delays.
func (b *box) serve(fails func(body string) error, delays ...time.Duration) *shop {
	b.t.Helper()
	s := &shop{fails: fails, handled: map[string]int{}}
	rig.Start(b.t, rig.Config{
		URL: b.url, Queue: b.queue, Strategy: b.strategy, Policy: backoff.List(delays), Keep: true,
		Configure: rig.WithQueue(amqp.Table{"x-queue-type": string(b.strategy.Type)}),
		RetryOptions: []middleware.Option{
			middleware.WithClassifier(middleware.PermanentErrors(errBad)),
		},
		Handle: func(msg *message.Message) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.calls = append(s.calls, time.Now())
			body := string(msg.Payload)
			if err := s.fails(body); err != nil {
				s.failed = append(s.failed, time.Now())
				return err
			}
			s.handled[body]++
			return nil
		},
	})
	return s
}

// forShops runs a test with a box of n dead letters of each type, and a service that fails so.
func forShops(
	t *testing.T, n int, fails func(body string) error, test func(t *testing.T, b *box, s *shop),
) {
	t.Helper()
	forTypes(t, func(t *testing.T, b *box) {
		b.delayBy(soon)
		b.die(n)
		test(t, b, b.serve(fails, soon))
	})
}

func (s *shop) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.handled)
}

func (s *shop) change(fails func(body string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = fails
}

func never(string) error  { return nil }
func always(string) error { return errBad }

// everyTenth fails with each tenth message from now on. So the first messages of a ramp succeed,
// also where the ramp before has stopped.
func everyTenth() func(string) error {
	calls := 0
	return func(string) error {
		if calls++; calls%10 == 0 {
			return errBad
		}
		return nil
	}
}

// quick are options for a handler that takes no time.
func quick(o operate.RampOptions) operate.RampOptions {
	o.Settle = 500 * time.Millisecond
	if o.Watch == 0 {
		o.Watch = rig.Patience
	}
	return o
}

func requireSum(t testing.TB, r operate.RampResult) {
	t.Helper()
	t.Log(r)
	require.Equal(t, r.Started, r.Handled+r.DeadAgain+r.Waiting+r.Unsettled+r.Left, "%+v", r)
	for _, n := range []int{r.Handled, r.DeadAgain, r.Waiting, r.Unsettled, r.Left} {
		require.GreaterOrEqual(t, n, 0, "%+v", r)
	}
	require.NoError(t, r.Unseen)
}

// ramp replays step by step, and requires the outcome and the sum of the letters.
func (b *box) ramp(ctx context.Context, o operate.RampOptions, want error) operate.RampResult {
	b.t.Helper()
	r, err := b.Ramp(ctx, b.plan, quick(o))
	require.ErrorIs(b.t, err, want)
	requireSum(b.t, r)
	return r
}

// Given a handler that works, then all letters are handled, step by step, and other letters stay.
func TestRampReplaysAllStepByStep(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		b.delayBy(soon)
		b.die(40, func(i int, notes *header.RetryState, m *amqp.Publishing) {
			switch {
			case i >= 38:
				notes.Error = "no such customer"
			case i >= 36:
				m.Headers[header.Replays] = "7"
			}
		})
		s := b.serve(never, soon)
		var steps []string
		r := b.ramp(t.Context(), operate.RampOptions{
			MoveOptions: operate.MoveOptions{
				Filter: operate.Filter{Error: "refused"}, Rate: 500, MaxReplays: 7,
			},
			Canary: 3, Steps: []int{1, 10}, Report: func(r operate.RampResult) {
				if len(steps) == 0 || steps[len(steps)-1] != r.Step {
					steps = append(steps, r.Step)
				}
			},
		}, nil)
		require.Equal(t, []string{"canary", "step 1", "step 2", "rest"}, steps)
		require.Equal(t, []int{36, 36, 36, 2, 36},
			[]int{r.Handled, r.Started, r.Replayed(), r.Spent, s.count()})
		require.Len(t, b.letters(operate.Filter{}), 4)
	})
}

// Given a handler that fails with every message, then nothing moves but the canary, and a second
// call has the rest before the canary of the first.
func TestRampStopsAtItsCanary(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		b.delayBy(soon)
		b.die(40)
		moved := make(chan struct{}) // the canary: a ramp may stop before, when two of three are dead
		enough := sync.OnceFunc(func() { close(moved) })
		s := b.serve(func(string) error { <-moved; return errBad }, soon)
		r := b.ramp(t.Context(), operate.RampOptions{
			MoveOptions: operate.MoveOptions{Progress: func(p operate.Progress) {
				if p.Done >= 3 {
					enough()
				}
			}},
		}, operate.ErrStopped)
		require.Equal(t, "canary", r.Step)
		require.Equal(t, 3, r.DeadAgain+r.Unsettled)
		require.Positive(t, r.DeadAgain)
		require.Equal(t, 37, r.Left)
		b.depth(b.dead, 40)
		replayed := b.letters(operate.Filter{Match: func(l operate.Letter) bool { return l.Replays > 0 }})
		require.Len(t, replayed, 3)
		require.Equal(t, 38, replayed[0].Position, "dead again, behind the others")
		require.Contains(t, replayed[0].Delivery.Headers[keys.Replay], r.Run+".")
		s.change(never)
		require.Equal(t, 40, b.ramp(t.Context(), operate.RampOptions{}, nil).Handled)
	})
}

// Given a handler that fails with a tenth, then a ramp that allows 5 % stops within a second, and
// a ramp that allows 20 % ends with all letters counted.
func TestRampStopsWhenTooManyAreDeadAgain(t *testing.T) {
	const dead = 2000
	forShops(t, dead, never, func(t *testing.T, b *box, s *shop) {
		s.change(everyTenth())
		r := b.ramp(t.Context(), operate.RampOptions{
			Canary: -1, MoveOptions: operate.MoveOptions{Rate: 50},
		}, operate.ErrStopped)
		require.Positive(t, r.DeadAgain)
		require.Positive(t, r.Handled)
		require.Greater(t, r.Left, dead/2)
		b.depth(b.queue, 0)
		s.mu.Lock()
		took := s.calls[len(s.calls)-1].Sub(s.failed[0])
		s.mu.Unlock()
		t.Logf("the last letter came %v after the first failure", took)
		require.Less(t, took, rig.Ceiling) // a second, on a machine with nothing else to do
		s.change(everyTenth())
		r = b.ramp(t.Context(), operate.RampOptions{
			Canary: -1, StopAt: 0.2, MoveOptions: operate.MoveOptions{Limit: 200, Rate: 1000},
		}, nil)
		require.Equal(t, []int{200, 20, 180}, []int{r.Started, r.DeadAgain, r.Handled})
	})
}

// Letters of other messages that come meanwhile make a ramp look, and do not stop it.
func TestRampIsNotStoppedByOtherLetters(t *testing.T) {
	forShops(t, 60, never, func(t *testing.T, b *box, _ *shop) {
		moved, others := 0, 0
		r := b.ramp(t.Context(), operate.RampOptions{
			MoveOptions: operate.MoveOptions{Rate: 30},
			Report: func(r operate.RampResult) {
				if r.Replayed() > moved { // a letter dies for each count
					moved = r.Replayed()
					others++
					b.die(1)
				}
			},
		}, nil)
		require.Equal(t, 60, r.Handled)
		require.Greater(t, others, 2)
		require.Len(t, b.letters(operate.Filter{}), others)
	})
}

// Given a queue without a consumer, or a consumer that dies with its messages, then the canary is
// watched for its time and nothing else moves. Given a service afterwards, another call goes on.
func TestRampWaitsForAConsumerWithABound(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		b.delayBy(soon)
		b.die(20)
		crashes := func(r operate.RampResult) {
			conn, err := amqp.Dial(b.url)
			require.NoError(t, err)
			defer conn.Close()
			ch, err := conn.Channel()
			require.NoError(t, err)
			_, _, err = ch.Get(b.queue, false) // not acked
			require.NoError(t, err)
		}
		for i, report := range []func(operate.RampResult){nil, crashes} {
			r, err := b.Ramp(t.Context(), b.plan, operate.RampOptions{
				Settle: 100 * time.Millisecond, Watch: time.Second, Report: report,
			})
			require.ErrorIs(t, err, operate.ErrUnsettled)
			require.ErrorContains(t, err, "0 consumers")
			requireSum(t, r)
			require.Equal(t, operate.RampResult{
				Run: r.Run, Step: "canary", Started: 20 - 3*i, Unsettled: 3, Left: 17 - 3*i,
				AtHandler: r.AtHandler,
			}, r)
		}
		s := b.serve(never, soon)
		require.Equal(t, 14, b.ramp(t.Context(), operate.RampOptions{}, nil).Handled)
		require.Equal(t, 20, s.count())
	})
}

// Letters that wait for their next attempt are counted, and hold the ramp up.
func TestRampCountsLettersThatWait(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		b.delayBy(time.Hour)
		b.die(20)
		b.serve(func(string) error { return errors.New("connection refused") }, time.Hour)
		r := b.ramp(t.Context(), operate.RampOptions{Watch: 5 * time.Second}, operate.ErrUnsettled)
		require.Equal(t, 3, r.Waiting+r.Unsettled)
		require.Positive(t, r.Waiting)
		require.Equal(t, 17, r.Left)
	})
}

// A filter that chooses nothing changes nothing, and nonsense is refused before anything is done.
func TestRampOfNothing(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		b.die(5)
		r := b.ramp(t.Context(), operate.RampOptions{
			MoveOptions: operate.MoveOptions{Filter: operate.Filter{Error: "timeout"}},
		}, nil)
		require.Zero(t, r.Started+r.Replayed()+r.Left)
		for name, options := range map[string]operate.RampOptions{
			"to":     {MoveOptions: operate.MoveOptions{To: b.queue + ".other"}},
			"dry":    {MoveOptions: operate.MoveOptions{DryRun: true}},
			"share":  {StopAt: 5},
			"watch":  {Settle: time.Minute, Watch: time.Second},
			"step":   {Steps: []int{1, 0}},
			"spent":  {MoveOptions: operate.MoveOptions{MaxReplays: -1}},
			"rate":   {MoveOptions: operate.MoveOptions{Rate: -1}},
			"limit":  {MoveOptions: operate.MoveOptions{Limit: -1}},
			"settle": {Settle: -1},
		} {
			_, err := b.Ramp(t.Context(), b.plan, options)
			require.ErrorIs(t, err, operate.ErrInvalidOptions, name)
			if name != "to" && name != "dry" { // these a rehearsal may have
				_, err = b.Rehearse(t.Context(), b.plan, options)
				require.ErrorIs(t, err, operate.ErrInvalidOptions, "rehearse "+name)
			}
		}
		b.delayBy(time.Second)
		rig.DeleteQueue(t, b.url, b.waits(time.Second).Name)
		_, err := b.Ramp(t.Context(), b.plan, operate.RampOptions{})
		require.ErrorContains(t, err, b.waits(time.Second).Name)
		require.Len(t, b.letters(operate.Filter{}), 5)
	})
}

// Given an outage, then each run costs its canary, and after it the letters are handled. Given a
// letter that always fails, then it is replayed MaxReplays times and stays.
func TestRampEveryEndsWithoutAStorm(t *testing.T) {
	forShops(t, 30, always, func(t *testing.T, b *box, s *shop) {
		poison := numbered(17, 18)[0]
		runs := 0
		err := b.RampEvery(t.Context(), b.plan, operate.RepeatOptions{
			Every: time.Second, UntilEmpty: true,
			RampOptions: quick(operate.RampOptions{MoveOptions: operate.MoveOptions{MaxReplays: 4}}),
			Ran: func(r operate.RampResult, err error) {
				requireSum(t, r)
				if runs++; runs == 2 {
					s.mu.Lock()
					require.LessOrEqual(t, len(s.calls), 6, "two canaries")
					s.mu.Unlock()
					s.change(func(body string) error {
						if body == poison {
							return errBad
						}
						return nil
					})
				}
				if runs <= 2 {
					require.ErrorIs(t, err, operate.ErrStopped)
				}
			},
		})
		require.NoError(t, err)
		left := b.letters(operate.Filter{})
		require.Len(t, left, 1)
		require.Equal(t, 4, left[0].Replays)
		require.Equal(t, poison, string(left[0].Delivery.Body))
		require.Equal(t, 29, s.count())

		// Given a limit, UntilEmpty once ended after the first run though letters were left.
		b.die(5)
		var started []int
		err = b.RampEvery(t.Context(), b.plan, operate.RepeatOptions{
			Every: time.Second, UntilEmpty: true,
			RampOptions: quick(operate.RampOptions{
				MoveOptions: operate.MoveOptions{Limit: 2, MaxReplays: 4},
			}),
			Ran: func(r operate.RampResult, err error) {
				requireSum(t, r)
				require.NoError(t, err)
				started = append(started, r.Started)
			},
		})
		require.NoError(t, err)
		require.Equal(t, []int{2, 2, 1}, started)
		b.depth(b.dead, 1)
		ctx, stop := context.WithCancel(t.Context())
		stop()
		err = b.RampEvery(ctx, b.plan, operate.RepeatOptions{})
		require.ErrorIs(t, err, context.Canceled)
		err = b.RampEvery(t.Context(), b.plan, operate.RepeatOptions{Every: time.Millisecond})
		require.ErrorIs(t, err, operate.ErrInvalidOptions)
	})
}
