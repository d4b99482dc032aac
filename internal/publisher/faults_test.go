package publisher_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

func TestConfirmThatNeverComes(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	proxy := testbroker.NewProxy(t, url)
	const timeout = 500 * time.Millisecond
	p := open(t, proxy.URL(), timeout)
	p.recovers(t, queue)

	proxy.Blackhole(true)
	begun := time.Now()
	within(t, timeout, "Publish", func() {
		err := p.say(t.Context(), queue, "lost")
		assert.ErrorIs(t, err, publisher.ErrUnknown)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "no answer from the broker within 500ms")
	})
	assert.GreaterOrEqual(t, time.Since(begun), timeout)
	within(t, timeout, "Publish", func() {
		assert.ErrorIs(t, p.say(t.Context(), queue, "not even sent"), publisher.ErrNotSent)
	})

	proxy.Blackhole(false)
	p.recovers(t, queue)
	assert.Zero(t, bodies(t, url, queue)["not even sent"])
}

// A broker that is gone without a word is noticed, although it closes nothing.
func TestConnectionThatAnswersNothingIsGivenUp(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	proxy := testbroker.NewProxy(t, url)
	p := open(t, proxy.URL(), 500*time.Millisecond)
	p.recovers(t, queue)
	dials := proxy.Connections()
	proxy.Blackhole(true)
	assert.ErrorIs(t, p.say(t.Context(), queue, "lost"), publisher.ErrUnknown)
	testbroker.WaitFor(t, "a new dial", 5*time.Second, func() bool { return proxy.Connections() > dials })
	assert.Error(t, p.Healthy())
}

// The confirm comes after its call has ended: the channel is not used again,
// and the connection, which answers, is.
func TestChannelIsNotUsedAfterATimeout(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	proxy := testbroker.NewProxy(t, url)
	p := open(t, proxy.URL(), long)
	require.NoError(t, p.say(t.Context(), queue, "before"))

	proxy.Delay(400 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, p.say(ctx, queue, "late"), publisher.ErrUnknown)
	proxy.Delay(0)
	require.NoError(t, p.say(t.Context(), queue, "after"))

	places := p.recorder.published()
	require.Len(t, places, 3)
	assert.Equal(t, places[0], places[1])
	assert.NotEqual(t, places[1], places[2], "the channel is used again")
	assert.Equal(t, 1, p.recorder.connections(), "the connection is not")
	assert.Equal(t, map[string]int{"before": 1, "late": 1, "after": 1}, bodies(t, url, queue))
}

// Channels of calls that have ended are closed: thousands would be too many.
func TestChannelsGivenUpAreClosed(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	proxy := testbroker.NewProxy(t, node.URL())
	redeclare(t, node.URL(), "q", nil)
	p := open(t, proxy.URL(), long)
	for range 10 {
		require.NoError(t, p.say(t.Context(), "q", "in between"))
		proxy.Delay(100 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		assert.ErrorIs(t, p.say(ctx, "q", "late"), publisher.ErrUnknown)
		cancel()
		proxy.Delay(0)
	}
	require.NoError(t, p.say(t.Context(), "q", "last"))
	testbroker.WaitFor(t, "all channels but ours and that of the declaration to be closed", patience, func() bool {
		return strings.Count(node.Ctl(t, "list_channels", "name"), " -> ") == 2
	})
	assert.Equal(t, 1, proxy.Connections())
}

func TestCutUnderManyCallers(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	proxy := testbroker.NewProxy(t, url)
	p := open(t, proxy.URL(), 10*time.Second)
	const n, each, cuts = 32, 150, 4
	var done atomic.Int64
	cutting := make(chan struct{})
	go func() {
		defer close(cutting)
		for cut := range int64(cuts) {
			at := (cut + 1) * n * each / (cuts + 1)
			testbroker.WaitFor(t, "calls before a cut", patience, func() bool { return done.Load() >= at })
			proxy.Cut()
			// Two cuts in a row would be one.
			testbroker.WaitFor(t, "the next connection", patience, func() bool { return proxy.Connections() == int(cut)+2 })
		}
	}()
	var calls []call
	within(t, patience, "publishing through cuts", func() {
		calls = callers(n, each, func(_ int, body string) error {
			defer done.Add(1)
			return p.say(t.Context(), queue, body)
		})
	})
	<-cutting
	for _, c := range calls {
		if c.err != nil {
			assert.ErrorIs(t, c.err, publisher.ErrUnknown)
		}
		assert.Less(t, c.took, 10*time.Second+slack)
	}
	assert.Greater(t, noFalseSuccess(t, calls, url, queue), n*each/2)
	assert.Equal(t, 1+cuts, proxy.Connections())
}

func TestBrokerRestartsUnderManyCallers(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testbroker.Node, testing.TB){
		"stopped": (*testbroker.Node).Stop,
		"killed":  (*testbroker.Node).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := testbroker.Private(t)
			redeclare(t, node.URL(), "q", nil)
			const timeout = 2 * time.Second
			p := open(t, node.URL(), timeout)
			require.NoError(t, p.Healthy())
			// Killed within two seconds, a broker with Mnesia may forget the queue: its log is written late. 4.3 has none.
			node.Ctl(t, "eval", "catch mnesia:sync_log().")

			stop := make(chan struct{})
			var (
				published atomic.Int64
				last      atomic.Pointer[error]
			)
			result := make(chan []call, 1)
			go func() {
				result <- callers(16, math.MaxInt, func(_ int, body string) error {
					select {
					case <-stop:
						return errEnough
					default:
					}
					err := p.say(t.Context(), "q", body)
					if err == nil {
						published.Add(1)
					} else {
						last.Store(&err)
					}
					return err
				})
			}()
			defer func() {
				if err := last.Load(); t.Failed() && err != nil {
					t.Logf("the last error of a call was: %v", *err)
				}
			}()
			testbroker.WaitFor(t, "publishes", patience, func() bool { return published.Load() > 500 })
			end(node, t)
			testbroker.WaitFor(t, "unhealthy", patience, func() bool { return p.Healthy() != nil })
			node.Start(t)
			before := published.Load()
			testbroker.WaitFor(t, "publishes again", patience, func() bool { return published.Load() > before+500 })
			close(stop)
			var calls []call
			within(t, timeout, "the calls", func() { calls = <-result })
			for _, c := range calls {
				assert.Less(t, c.took, timeout+slack)
			}
			assert.NoError(t, p.Healthy())
			assert.Greater(t, noFalseSuccess(t, calls, node.URL(), "q"), 1000)
		})
	}
}

func TestFrozenBroker(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	redeclare(t, node.URL(), "q", nil)
	const timeout = time.Second
	p := open(t, node.URL(), timeout)
	p.recovers(t, "q")
	node.Freeze(t)
	body := strings.Repeat("x", 1<<20) // 64 of them fill every buffer
	for _, c := range callers(64, 1, func(int, string) error { return p.say(t.Context(), "q", body) }) {
		assert.True(t, isAny(c.err, publisher.ErrUnknown, publisher.ErrNotSent), "%v", c.err)
		assert.Less(t, c.took, timeout+slack)
	}
	node.Thaw(t)
	p.recovers(t, "q")
}

func TestMemoryAlarm(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	redeclare(t, node.URL(), "q", nil)
	const timeout = 2 * time.Second
	same, closing := open(t, node.URL(), timeout), open(t, node.URL(), timeout)
	for _, p := range []rig{same, closing} {
		p.recovers(t, "q")
		require.NoError(t, p.Healthy())
	}

	node.Ctl(t, "set_vm_memory_high_watermark", "0.000001")
	body := strings.Repeat("x", 1<<20)
	for round, p := range []rig{same, closing, same} {
		calls := callers(64, 1, func(int, string) error { return p.say(t.Context(), "q", body) })
		for _, c := range calls {
			assert.Less(t, c.took, timeout+slack, "round %d: %v", round, c.err)
			// A few may be stored before the broker notices.
			assert.True(t, c.err == nil || isAny(c.err, publisher.ErrUnknown, publisher.ErrNotSent), "%v", c.err)
		}
	}
	testbroker.WaitFor(t, "the alarm to be known", patience, func() bool {
		_ = same.say(t.Context(), "q", "poke")
		err := same.Healthy()
		return err != nil && strings.Contains(err.Error(), "blocked publishing")
	})
	err := same.say(t.Context(), "q", "never")
	assert.ErrorIs(t, err, publisher.ErrNotSent)
	assert.ErrorContains(t, err, "blocked publishing")
	within(t, goodbye, "Close during the alarm", closing.Close)

	node.Ctl(t, "set_vm_memory_high_watermark", "0.4")
	same.recovers(t, "q")
	assert.NoError(t, same.Healthy())
	open(t, node.URL(), timeout).recovers(t, "q")
	assert.Zero(t, bodies(t, node.URL(), "q")["never"])
}

// While the broker is known not to read, nothing more is written, so the outcome
// of what comes then is never in doubt, and the channel is used again afterwards.
func TestNothingIsSentDuringAnAlarm(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	redeclare(t, node.URL(), "q", nil)
	p := open(t, node.URL(), long)
	require.NoError(t, p.say(t.Context(), "q", "before"))
	node.Ctl(t, "set_vm_memory_high_watermark", "0.000001")
	publish := func(body string) <-chan error {
		result := make(chan error, 1)
		go func() { result <- p.say(t.Context(), "q", body) }()
		return result
	}
	first := publish("first") // for which the broker blocks the connection
	testbroker.WaitFor(t, "the alarm to be known", patience, func() bool { return p.Healthy() != nil })
	sent := p.recorder.published()

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	for _, c := range callers(8, 1, func(int, string) error { return p.say(ctx, "q", "never") }) {
		assert.ErrorIs(t, c.err, publisher.ErrNotSent)
		assert.ErrorContains(t, c.err, "blocked publishing")
	}
	assert.Equal(t, sent, p.recorder.published(), "something was written")

	patient := publish("patient")
	node.Ctl(t, "set_vm_memory_high_watermark", "0.4")
	within(t, patience, "publishing", func() {
		assert.NoError(t, <-first)
		assert.NoError(t, <-patient)
	})
	places := p.recorder.published()
	assert.Equal(t, places[0], places[len(places)-1], "another channel")
	assert.Equal(t, map[string]int{"before": 1, "first": 1, "patient": 1}, bodies(t, node.URL(), "q"))
}

func TestCloseUnderAMemoryAlarmWithFullBuffers(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	redeclare(t, node.URL(), "q", nil)
	p := open(t, node.URL(), long)
	require.NoError(t, p.say(t.Context(), "q", "before"))
	node.Ctl(t, "set_vm_memory_high_watermark", "0.000001")
	results := make(chan error, 64)
	body := []byte(strings.Repeat("x", 1<<20))
	for range cap(results) {
		go func() { results <- p.Publish(t.Context(), "", "q", amqp.Publishing{Body: body}) }()
	}
	testbroker.WaitFor(t, "the alarm to be known", patience, func() bool { return p.Healthy() != nil })
	within(t, goodbye, "Close", p.Close)
	within(t, 0, "the calls", func() {
		for range cap(results) {
			err := <-results
			assert.True(t, err == nil || isAny(err, publisher.ErrUnknown, publisher.ErrClosed), "%v", err)
		}
	})
}

func TestHealthyFollowsTheConnection(t *testing.T) {
	t.Parallel()
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	p := open(t, proxy.URL(), long)
	assert.NoError(t, p.Healthy())
	proxy.Refuse(true)
	proxy.Cut()
	testbroker.WaitFor(t, "unhealthy", patience, func() bool { return p.Healthy() != nil })
	assert.ErrorContains(t, p.Healthy(), "not connected")
	proxy.Refuse(false)
	testbroker.WaitFor(t, "healthy", patience, func() bool { return p.Healthy() == nil })
	p.Close()
	assert.ErrorIs(t, p.Healthy(), publisher.ErrClosed)
}
