package e2e_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

const (
	roundedUp = "Warning: a delay is rounded up by more than a tenth, because it has no wait step; " +
		"give the Subscriber the policy with topology.For or topology.ForPolicy, and a delay that an " +
		"error asks for as a backoff.List beside it"
	willBeRetried = "Message will be retried"
)

// A snooze spends no attempt, however often, and also if it is longer than every wait step (C6).
func TestSnoozeSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	var calls rig.Timeline
	attempts := make(chan int, 10)
	r := rig.Start(t, rig.Config{
		Strategy: topology.PerQueue{WaitSteps: []time.Duration{time.Second}},
		Policy:   backoff.List{time.Second},
		Handle: func(msg *message.Message) error {
			attempts <- middleware.Attempt(msg.Context())
			switch calls.Record(msg) {
			case 1:
				return middleware.Snooze(rig.ErrFailed, 2500*time.Millisecond)
			case 2:
				return middleware.Snooze(rig.ErrFailed, 0)
			}
			return rig.ErrFailed
		},
	})
	r.Send("later")
	require.Equal(t, "2", r.DeadLetter().Headers[header.DeadFailures])
	// A snooze of three rounds. A round that is late makes the rest shorter.
	calls.RequireNotEarly(t, 2500*time.Millisecond, time.Second, time.Second)
	lastRounds := slices.Repeat([]string{r.Queue + ".wait.1s"}, 3)
	require.Equal(t, lastRounds, calls.Passed())
	rig.AwaitAttempts(t, attempts, 1, 1, 1, 2)
}

// Given a server that answers 429 with Retry-After: 7 and a policy with 1 s, then the message
// comes back after the next longer wait step, 8 s, because that is not a quarter late. With Levels
// it comes back after 7 s (C2).
func TestRetryAfterOfAServer(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Query().Get("attempt") == "1" {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	t.Cleanup(server.Close)
	for name, want := range map[string]time.Duration{
		"quorum": 8 * time.Second, "levels quorum": 7 * time.Second, "levels classic": 7 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls rig.Timeline
			r := rig.Start(t, rig.Config{
				Strategy: rig.Strategies[name](t),
				Policy:   backoff.List{time.Second, 8 * time.Second, 30 * time.Second},
				Handle: func(msg *message.Message) error {
					resp, err := server.Client().Get(server.URL + "?attempt=" + strconv.Itoa(calls.Record(msg)))
					if err != nil {
						return err
					}
					_ = resp.Body.Close()
					if resp.StatusCode == http.StatusOK {
						return nil
					}
					return middleware.RetryAfterHeader(errors.New(resp.Status), resp.Header, time.Hour)
				},
			})
			r.Send("limited")
			rig.WaitFor(t, "the second call", func() bool { return calls.Count() == 2 })
			r.Stop()
			calls.RequireGaps(t, r.Plan, want)
		})
	}
}

// Given more failures than queues of PerAttempt, and a delay that only an error asks for, then
// no message needs a queue that is missing, and none comes back early.
func TestPerAttemptBeyondItsQueues(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Strategy: topology.PerAttempt{Delays: []time.Duration{100 * ms, 100 * ms}},
		Policy:   rig.Quickly(4),
		Handle: func(msg *message.Message) error {
			calls.Record(msg)
			if middleware.Attempt(msg.Context()) == 4 {
				return middleware.RetryAfter(rig.ErrFailed, 2500*ms)
			}
			return rig.ErrFailed
		},
	})
	r.Send("order 1")
	require.Equal(t, "5", r.DeadLetter().Headers[header.DeadFailures])
	// At last three rounds. A round that is late makes the rest shorter.
	calls.RequireNotEarly(t, 100*ms, 100*ms, 100*ms, 2500*ms)
	first, second := r.Queue+".retry.1.100ms", r.Queue+".retry.2.100ms"
	require.Equal(t, []string{first, second, second, r.Queue + ".retry.0.1s"}, calls.Passed())
	require.Equal(t, -1, r.Depth(".retry.3.100ms"))
}

// Given a Subscriber without ForPolicy, then the delays are the default wait steps. The log
// tells both delays of each retry, and warns once for each Subscribe.
func TestSubscriberWithoutThePolicyIsNamed(t *testing.T) {
	t.Parallel()
	const ms, s = time.Millisecond, time.Second
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Strategy: topology.PerQueue{WaitSteps: []time.Duration{100 * ms, s}}, UnknownPolicy: true,
		Policy: backoff.List{100 * ms, 300 * ms, 400 * ms}, Handle: calls.Fail,
	})
	r.Send("rounded")
	r.DeadLetter()
	calls.RequireGaps(t, r.Plan, 100*ms, s, s)

	var told [][]any
	for _, e := range r.Logs.EntriesOf(willBeRetried) {
		told = append(told, []any{e.Fields["delay"], e.Fields["asked"]})
	}
	require.Equal(t, [][]any{{100 * ms, nil}, {s, 300 * ms}, {s, 400 * ms}}, told)
	warnings := r.Logs.EntriesOf(roundedUp)
	require.Len(t, warnings, 1)
	for field, want := range map[string]any{
		"queue": r.Queue, "asked": 300 * ms, "delay": s,
		"delays_asked": []time.Duration{100 * ms, 300 * ms}, "wait_steps": []time.Duration{100 * ms, s},
	} {
		require.Equal(t, want, warnings[0].Fields[field], field)
	}
}

func TestSubscriberWithThePolicyIsNotNamed(t *testing.T) {
	t.Parallel()
	r := rig.Start(t, rig.Config{
		Policy: backoff.List{100 * time.Millisecond, 105 * time.Millisecond},
		Handle: func(msg *message.Message) error {
			if middleware.StateOf(msg.Context()).FirstSeen.IsZero() {
				return middleware.Snooze(rig.ErrFailed, 0) // as short as possible
			}
			return rig.ErrFailed
		},
	})
	r.Send("exact")
	r.DeadLetter()
	require.Empty(t, r.Logs.EntriesOf(roundedUp))
	for _, e := range r.Logs.EntriesOf(willBeRetried) {
		require.NotContains(t, e.Fields, "asked")
	}
}

func TestRoundingOfLevelsNamesTheResolution(t *testing.T) {
	t.Parallel()
	r := rig.Start(t, rig.Config{
		Strategy: rig.Levels(t, topology.Quorum), Handle: rig.Fail,
		Policy: backoff.List{110 * time.Millisecond, 120 * time.Millisecond},
	})
	r.Send("levels")
	r.DeadLetter()
	require.Equal(t, 1, r.Logs.Said("give topology.Levels a smaller Resolution"))
	require.Empty(t, r.Logs.EntriesOf(roundedUp))
}

// Given a policy of six hours, when the router nacks, then the message comes back after a
// second. Plans with long delays had no shorter step, and the message was away for hours.
func TestNackedUnderAPolicyOfHoursComesBackInSeconds(t *testing.T) {
	t.Parallel()
	rig.OnEachStrategy(t, func(t *testing.T, strategy topology.Strategy) {
		var calls rig.Timeline
		back := make(chan struct{})
		r := rig.Start(t, rig.Config{
			Strategy: strategy, Policy: backoff.List{6 * time.Hour}, Handle: rig.Succeed,
			Outer: []message.HandlerMiddleware{func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					if calls.Record(msg) == 1 {
						return nil, rig.ErrFailed // outside DelayedRetry: the router nacks
					}
					close(back)
					return h(msg)
				}
			}},
		})
		r.Send("nacked")
		select {
		case <-back:
		case <-time.After(time.Minute):
			t.Fatal("still away after a minute")
		}
		calls.RequireGaps(t, r.Plan, time.Second)
	})
}

// Not promised: the message behind a failed message overtakes it.
func TestOrderIsNotKept(t *testing.T) {
	t.Parallel()
	handled := make(chan string, 10)
	failFirst := (&rig.Timeline{}).FailUntil(2)
	r := rig.Start(t, rig.Config{
		Configure: rig.QuorumQueue, Policy: backoff.List{time.Second},
		Handle: func(msg *message.Message) error {
			err := failFirst(msg)
			if err == nil {
				handled <- string(msg.Payload)
			}
			return err
		},
	})
	r.Send("first", "second")
	require.Equal(t, "second", <-handled)
	require.Equal(t, "first", <-handled)
}

// Given a message whose headers tell more failures than the policy allows, then it is
// dead-lettered without a call of the handler. An invalid count or another queue's counts zero.
func TestForgedCountsAreGuarded(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 10)
	r := rig.Start(t, rig.Config{
		Policy: backoff.List{time.Second}, Handler: rig.FailUntil(0, attempts),
	})
	for _, forged := range []string{"2", "99999999999999999999"} {
		r.Publish(amqp.Publishing{Headers: amqp.Table{header.Queue: r.Queue, keys.Failures: forged}})
		require.Equal(t, "exhausted", r.DeadLetter().Headers[header.DeadReason])
	}
	require.Empty(t, attempts)
	for _, headers := range []amqp.Table{
		{header.Queue: r.Queue, keys.Failures: "-3"},
		{header.Queue: r.Queue, keys.Failures: "many"},
		{header.Queue: "another", keys.Failures: "99"},
		{keys.Failures: int64(99)},
	} {
		r.Publish(amqp.Publishing{Headers: headers})
		require.Equal(t, 1, <-attempts)
	}
}

// Given a delay that is rounded up beyond a limit, then the message is dead-lettered at once.
// Eleven rounds of a second are too many, so 11 s wait a minute.
// Messages waited in spite of the limit, and were handled too old or refused afterwards.
func TestLimitsGoByTheDelayThatIsGiven(t *testing.T) {
	t.Parallel()
	expiring := amqp.Publishing{Expiration: "30000"}
	snoozed := middleware.Snooze(rig.ErrFailed, 11*time.Second)
	type testCase struct {
		send    amqp.Publishing
		options []middleware.Option
		err     error
		reason  string
	}
	rig.Each(t, map[string]testCase{
		"age": {
			options: []middleware.Option{middleware.WithMaxAge(30 * time.Second)},
			err:     rig.ErrFailed, reason: "max_age",
		},
		"deadline":         {send: expiring, err: rig.ErrFailed, reason: "deadline"},
		"Snooze, deadline": {send: expiring, err: snoozed, reason: "deadline"},
		"Snooze, limit": {
			options: []middleware.Option{
				middleware.WithSnoozeLimit(30 * time.Second), middleware.WithMaxAttempts(1),
			},
			err: snoozed, reason: "exhausted",
		},
	}, func(t *testing.T, c testCase) {
		var calls rig.Timeline
		r := rig.Start(t, rig.Config{
			Strategy: topology.PerQueue{WaitSteps: []time.Duration{time.Second, time.Minute}},
			Policy:   backoff.List{11 * time.Second}, UnknownPolicy: true, RetryOptions: c.options,
			Handle: func(*message.Message) error { calls.Add(); return c.err },
		})
		r.Publish(c.send)
		require.Equal(t, c.reason, r.DeadLetter().Headers[header.DeadReason])
		require.Equal(t, 1, calls.Count())
		require.Empty(t, r.Logs.EntriesOf(willBeRetried), "it did not wait")
		require.Empty(t, r.Logs.EntriesOf("Message set aside"), "it did not wait")
	})
}

// Given a policy with jitter, when two hundred messages fail, then they spread over all wait
// steps that the plan shows. None comes back before its delay, and the broker has the queues of
// the plan only (P5).
func TestJitterSpreadsOverPlannedWaitSteps(t *testing.T) {
	t.Parallel()
	const messages = 200
	node := testbroker.Private(t)
	policy := backoff.FullJitter{Policy: backoff.List{2 * time.Second}}
	const half = 500 * time.Millisecond
	steps := []time.Duration{half, 2 * half, 3 * half, 4 * half}
	for name, strategy := range rig.Strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			strategy := strategy(t)
			var mu sync.Mutex
			asked, on, failedAt := map[string]time.Duration{}, map[string]int{}, map[string]time.Time{}
			handled := 0
			r := rig.Start(t, rig.Config{
				URL: node.URL(), Strategy: strategy, Policy: policy, Configure: rig.QuorumQueue,
				Queue: strings.ReplaceAll(name, " ", "-"), SubscriberOptions: rig.InFlight(16),
				Handle: func(msg *message.Message) error {
					body := string(msg.Payload)
					mu.Lock()
					defer mu.Unlock()
					if middleware.Attempt(msg.Context()) == 1 {
						failedAt[body] = time.Now()
						return rig.ErrFailed
					}
					delay, err := time.ParseDuration(msg.Metadata.Get(keys.Delay))
					if err != nil {
						t.Error(err)
					}
					if waited := time.Since(failedAt[body]); waited < delay-rig.Grace {
						t.Errorf("message %s waited %v, its delay is %v", body, waited, delay)
					}
					handled++
					asked[body] = delay
					raw, _ := topology.Received(msg.Context())
					queue, _ := raw.Headers["x-first-death-queue"].(string)
					on[queue]++
					return nil
				},
			})
			planned := make([]time.Duration, 0, len(steps))
			for _, step := range r.Plan.WaitSteps {
				planned = append(planned, step.Delay)
				require.Contains(t, r.Plan.String(), " "+step.Delay.String()+" ")
			}
			if r.Plan.Levels == nil {
				require.Equal(t, steps, planned)
			}
			first := strings.Replace(rig.QueueNames(r.Plan)[0], ".level.", ".wait.", 1)
			prefix, _, _ := strings.Cut(first, ".wait.")
			queues := func() []string {
				all := strings.Fields(node.Ctl(t, "list_queues", "--silent", "name"))
				all = slices.DeleteFunc(all, func(q string) bool {
					return !strings.HasPrefix(q+".", r.Queue+".") && !strings.HasPrefix(q, prefix+".")
				})
				slices.Sort(all)
				return all
			}
			want := slices.Sorted(slices.Values(append(rig.QueueNames(r.Plan), r.Queue)))
			require.Equal(t, want, queues())

			rig.Fill(t, r.URL, r.Queue, messages)
			rig.WaitFor(t, "all to return", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return handled == messages
			})
			r.Stop()
			require.Equal(t, want, queues(), "no queue that was not planned")
			t.Logf("came back from %v", on)
			if r.Plan.Levels != nil { // The delays are exact, by any level.
				entered := map[string]int{}
				for _, delay := range asked {
					route, err := r.Plan.Route(topology.Retry{Delay: delay})
					require.NoError(t, err)
					require.LessOrEqual(t, route.Delay, delay+100*time.Millisecond)
					waits, _ := rig.Walk(t, r.Plan, route)
					entered[waits[0].Name]++
				}
				require.Equal(t, entered, on)
				return
			}
			for i, step := range steps {
				n := 0
				for _, delay := range asked {
					if delay <= step && (i == 0 || delay > steps[i-1]) {
						n++
					}
				}
				require.Equal(t, n, on[r.Plan.Queues[i].Name], "rounded up to %v", step)
				require.Positive(t, n, "wait step %v", step)
			}
		})
	}
}
