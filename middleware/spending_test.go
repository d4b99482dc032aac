package middleware_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/seam"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/budget"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
	"github.com/millpond-go/millpond/middleware/outage"
)

// spender is a handler with a budget and a log of what became of its failures.
type spender struct {
	t       *testing.T
	budget  *budget.Budget
	broker  *middlewaretest.Broker
	retry   *middleware.DelayedRetry
	logger  *watermill.CaptureLoggerAdapter
	handled int
}

// newSpender has the policy 1s 1m.
func newSpender(t *testing.T, cfg budget.Config, options ...middleware.Option) *spender {
	t.Helper()
	budget, err := budget.New(cfg)
	require.NoError(t, err)
	s := &spender{t: t, budget: budget, broker: newBroker(), logger: watermill.NewCaptureLogger()}
	options = append(options, middleware.WithBudget(budget), withLogger(s.logger))
	s.retry, err = middleware.NewDelayedRetry(
		s.broker, backoff.List{time.Second, time.Minute}, options...,
	)
	require.NoError(t, err)
	return s
}

// deliver has a fresh message handled with err, and returns what became of it.
func (s *spender) deliver(err error) string { return s.deliverAs(delivery{}, err) }

func (s *spender) deliverAs(d delivery, err error) string {
	s.t.Helper()
	before, called := len(s.broker.Calls()), s.handled
	_, result := s.retry.Middleware(func(*message.Message) ([]*message.Message, error) {
		s.handled++
		return nil, err
	})(newMessage(d))
	require.Nil(s.t, result)
	calls := s.broker.Calls()[before:]
	switch {
	case len(calls) == 0:
		return "handled"
	case calls[0].Dead:
		return string(calls[0].State.Reason)
	case calls[0].Snoozed && called == s.handled:
		return "held back " + calls[0].Delay.String()
	default:
		return calls[0].Delay.String()
	}
}

func (s *spender) expect(err error, want ...string) {
	s.t.Helper()
	var got []string
	for range want {
		got = append(got, s.deliver(err))
	}
	assert.Equal(s.t, want, got)
}

func TestBudgetClosesWithTheShareOfFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSpender(t, budget.Config{Share: 0.5, Minimum: 4})
		s.expect(errBoom, "1s", "1s", "1s", "1m0s", "1m0s") // the fourth failure closes it
		s.expect(middleware.Permanent(errBoom), "permanent")
		s.expect(middleware.Snooze(errBoom, time.Second), "1s") // no failure, no retry
		assert.Equal(t, "closed true, 6 deliveries, 5 failed, 3 retries", stateOf(s.budget))
		// Half the share opens it: 6 of 24, but not 6 of 20.
		for range 13 {
			s.expect(nil, "handled")
		}
		s.expect(errBoom, "1m0s")
		s.expect(nil, "handled", "handled", "handled", "handled")
		s.expect(errBoom, "1s")
		lines := s.logger.Captured()
		closed := lines[watermill.ErrorLogLevel][0]
		assert.Equal(t, "Retry budget is closed", closed.Msg)
		assert.Equal(t, 4, closed.Fields["failed"])
		assert.True(t, s.logger.Has(watermill.CapturedMessage{
			Level: watermill.InfoLogLevel, Msg: "Retry budget is open again",
			Fields: watermill.LogFields{"deliveries": 24, "failed": 6, "retries": 3},
		}), "logged %+v", lines)
	})
}

func TestBudgetForgets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSpender(t, budget.Config{Share: 0.5, Minimum: 2})
		s.expect(errBoom, "1s", "1m0s")
		time.Sleep(8 * time.Second)
		s.expect(errBoom, "1m0s")
		time.Sleep(2 * time.Second) // the first two are out of the window, one of one is left
		s.expect(errBoom, "1m0s")
		time.Sleep(11 * time.Second) // nothing is
		s.expect(errBoom, "1s")
	})
}

func TestBudgetOfRetriesAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := newSpender(t, budget.Config{Retries: 2, Window: time.Minute})
		slow.expect(errBoom, "1s", "1s", "1m0s", "1m0s")
		dead := newSpender(t, budget.Config{Retries: 2, Window: time.Minute, DeadLetter: true})
		dead.expect(errBoom, "1s", "1s", "over_budget", "over_budget")
		time.Sleep(time.Minute + time.Second)
		slow.expect(errBoom, "1s", "1s", "1m0s")
		dead.expect(errBoom, "1s", "1s", "over_budget")
		last := dead.broker.DeadLetters()[2].State
		assert.False(t, last.Failures != 1 || len(last.History) != 1 || last.Error != "boom",
			"the dead letter has %+v", last)
	})
}

func TestBudgetDelaysNoRetryPastItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSpender(t, budget.Config{Retries: 1, Delay: time.Hour}, withMaxAge(time.Minute))
		s.expect(errBoom, "1s", "1s")
		s = newSpender(t, budget.Config{Retries: 1, Delay: time.Hour})
		s.expect(errBoom, "1s")
		soon := delivery{State: state{Deadline: time.Now().Add(time.Minute)}}
		assert.Equal(t, "1s", s.deliverAs(soon, errBoom))
		s.expect(errBoom, "1h0m0s")
		// The slow delay that is asked for would be in time, the given one is not.
		coarse := delivery{
			State: state{Deadline: time.Now().Add(2 * time.Hour)},
			Given: func(asked time.Duration) time.Duration { return 3 * asked },
		}
		assert.Equal(t, "1s", s.deliverAs(coarse, errBoom))
	})
}

// While it is closed only probes reach the handler.
func TestBudgetHoldsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSpender(t, budget.Config{Share: 0.5, Minimum: 2, Probes: 2})
		s.expect(errBoom, "1s", "1m0s") // closed
		s.expect(errBoom, "1m0s", "1m0s", "held back 1m0s", "held back 1m0s")
		held := s.broker.Calls()[5].State
		assert.False(t, held.Failures != 0 || held.History != nil || held.FirstSeen.IsZero(),
			"an attempt was counted: %+v", held)
		suspect := delivery{State: state{Interruptions: 2}}
		require.Equal(t, "held back 1m0s", s.deliverAs(suspect, errBoom))
		if calls := s.broker.Calls(); calls[len(calls)-1].State.Interruptions != 2 {
			t.Error("held back is not handled: the suspicion is still there")
		}
		// One held back for long enough is handled all the same.
		old := delivery{State: state{FirstSeen: time.Now().Add(-24 * time.Hour)}}
		assert.Equal(t, "handled", s.deliverAs(old, nil))
		// A message that would come back too late is handled.
		late := delivery{State: state{Deadline: time.Now().Add(time.Second)}}
		assert.Equal(t, "handled", s.deliverAs(late, nil))
		time.Sleep(9 * time.Second)
		s.expect(nil, "held back 1m0s")
		time.Sleep(2 * time.Second) // probes again, and no failure is left in the window
		s.expect(nil, "handled", "handled", "handled", "handled")
	})
}

func TestBadBudgets(t *testing.T) {
	t.Parallel()
	_, err := budget.New(budget.Config{
		Window: time.Millisecond, Share: 1.5, Minimum: -1, Retries: -2, Probes: -3, Delay: -time.Second,
	})
	for _, want := range []string{
		"window 1ms", "share 1.5", "minimum -1", "retries -2", "probes -3", "delay -1s",
	} {
		assert.ErrorContains(t, err, want)
	}
	broken := func(b outage.Brake) budget.Config {
		return budget.Config{Share: 0.5, Brake: b}
	}
	keyOf := func(*message.Message) string { return "" }
	for want, cfg := range map[string]budget.Config{
		"neither share nor retries":            {},
		"with a share":                         {Retries: 1, Probes: 1},
		"set one":                              {Share: 0.5, Probes: 1, DeadLetter: true},
		"a brake is for a budget with a share": {Retries: 1, Brake: outage.Brake{}},
		"a brake keeps the messages":           {Share: 0.5, Brake: outage.Brake{}, DeadLetter: true},
		"Key needs Brake":                      {Share: 0.5, Key: keyOf},
		"not printable":                        broken(outage.Brake{Name: "pay\nments"}),
		"longer than 200 bytes":                broken(outage.Brake{Name: strings.Repeat("n", 201)}),
		"ramp -1s is negative":                 broken(outage.Brake{Ramp: -time.Second}),
		"successes -1":                         broken(outage.Brake{Successes: -1}),
		"keys -1":                              {Share: 0.5, Brake: outage.Brake{}, Keys: -1},
		"brake: probe: backoff.Exponential":    broken(outage.Brake{Probe: backoff.Exponential{}}),
	} {
		_, err := budget.New(cfg)
		assert.ErrorContains(t, err, want)
	}
	one, err := budget.New(budget.Config{Retries: 1, Brake: (*outage.Brake)(nil)})
	require.NoError(t, err)
	unlisted := backoff.Limit{
		Policy: backoff.PolicyFunc(
			func(backoff.Failure) (time.Duration, bool) { return time.Second, true },
		),
		Retries: 3,
	}
	_, err = middleware.NewDelayedRetry(newBroker(), unlisted, middleware.WithBudget(one))
	assert.ErrorContains(t, err, "set Delay of the budget.Config")
	byKey := func() middleware.Option {
		keyed, err := budget.New(budget.Config{
			Share: 0.5, Brake: outage.Brake{}, Key: keyOf,
		})
		require.NoError(t, err)
		return middleware.WithBudget(keyed)
	}
	for want, options := range map[string][]middleware.Option{
		"a second budget has a Key":      {byKey(), byKey()},
		"the same budget is given twice": {middleware.WithBudget(one), middleware.WithBudget(one)},
		"a selector is empty":            {middleware.WithBudget(one, middleware.Selector{})},
		"classifier of a selector is nil": {
			middleware.WithBudget(one, middleware.Selector{Error: middleware.ClassifierFunc(nil)}),
		},
	} {
		_, err = middleware.NewDelayedRetry(newBroker(), backoff.None{}, options...)
		assert.ErrorContains(t, err, want)
	}
}

func TestBudgetSharedByManyHandlers(t *testing.T) {
	t.Parallel()
	budget, err := budget.New(budget.Config{Window: time.Hour, Retries: 100})
	require.NoError(t, err)
	broker := newBroker()
	var wg sync.WaitGroup
	for range 8 {
		retry, err := middleware.NewDelayedRetry(
			broker, backoff.List{time.Second, time.Minute}, middleware.WithBudget(budget),
		)
		require.NoError(t, err)
		wg.Go(func() {
			for i := range 50 {
				var failure error
				if i%2 == 0 {
					failure = errBoom
				}
				acked(t, retry.Middleware(failsWith(failure)), newMessage(delivery{}))
				stateOf(budget)
			}
		})
	}
	wg.Wait()
	delays := map[time.Duration]int{}
	for _, call := range broker.Calls() {
		delays[call.Delay]++
	}
	assert.Equal(t, "map[1s:100 1m0s:100]", fmt.Sprint(delays))
	assert.Equal(t, "closed true, 400 deliveries, 200 failed, 100 retries", stateOf(budget))
}

func stateOf(b *budget.Budget) string {
	deliveries, failed, retries := b.Counts()
	return fmt.Sprintf(
		"closed %v, %d deliveries, %d failed, %d retries", b.Closed(), deliveries, failed, retries,
	)
}

// Failures elsewhere do not count. Failures with another error are deliveries that did not fail.
func TestBudgetForSomeFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mail, err := budget.New(budget.Config{Share: 0.5, Minimum: 2})
		require.NoError(t, err)
		stock, err := budget.New(budget.Config{Share: 0.5, Minimum: 2})
		require.NoError(t, err)
		isMail := middleware.RetryableIf(func(err error) bool {
			return strings.Contains(err.Error(), "mail")
		})
		s := newSpender(t, budget.Config{Retries: 1000},
			middleware.WithBudget(mail, middleware.Selector{Queue: "orders", Error: isMail}),
			middleware.WithBudget(stock, middleware.Selector{Queue: "stock"}))
		noMail := fmt.Errorf("no mail: %w", errBoom)
		orders := delivery{Queue: "orders"}
		assert.Equal(t, "1s", s.deliverAs(orders, noMail))
		assert.Equal(t, "1m0s", s.deliverAs(orders, noMail), "the second failure closes it")
		assert.Equal(t, "1s", s.deliverAs(orders, errBoom), "another service")
		assert.Equal(t, "1s", s.deliverAs(delivery{Queue: "parcels"}, noMail), "another queue")
		assert.Equal(t, "closed true, 3 deliveries, 2 failed, 1 retries", stateOf(mail))
		assert.Equal(t, "closed false, 0 deliveries, 0 failed, 0 retries", stateOf(stock))
	})
}

// Given a budget by customer, when the messages of one fail, then they are set aside without an
// attempt, one at a time probes, and the other customers do not notice.
func TestBudgetByKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		customer := "a"
		s := newSpender(t, budget.Config{
			Share: 0.5, Minimum: 2,
			Brake: outage.Brake{Successes: 2, Probe: backoff.Constant{Interval: time.Second}},
			Key: func(*message.Message) string {
				if customer == "panic" {
					panic("no customer")
				}
				return customer
			},
		})
		// The second failure stops the key, and is the first that is set aside.
		s.expect(errBoom, "1s", "1m0s")
		last := s.broker.Calls()[1].State
		require.Zero(t, last.Failures, "an attempt was counted")
		s.expect(errBoom, "held back 1m0s", "held back 1m0s")
		customer = "b"
		s.expect(errBoom, "1s")
		s.expect(nil, "handled", "handled")
		customer = "panic"
		s.expect(errBoom, "1s", "1s", "1s")
		customer = ""
		s.expect(errBoom, "1s", "1s", "1s")

		customer = "a"
		time.Sleep(time.Second)
		s.expect(errBoom, "1m0s", "held back 1m0s") // one probe, which fails
		time.Sleep(time.Second)
		s.expect(nil, "handled", "handled", "handled") // two probes start the key
		s.expect(errBoom, "1s")
		require.False(t, s.budget.Closed())
		require.Equal(t, 1, len(s.logger.Captured()[watermill.ErrorLogLevel]))
		require.True(t, s.logger.Has(watermill.CapturedMessage{
			Level: watermill.InfoLogLevel, Msg: "Messages with this key are handled again",
			Fields: watermill.LogFields{"brake": "", "key": "a"},
		}))
	})
}

// A budget does not remember more keys than it is told to.
func TestBudgetForgetsKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		customer := "a"
		s := newSpender(t, budget.Config{
			Share: 0.5, Minimum: 2, Brake: outage.Brake{}, Keys: 2,
			Key: func(*message.Message) string { return customer },
		})
		s.expect(errBoom, "1s", "1m0s", "held back 1m0s")
		for _, customer = range []string{"b", "c"} {
			s.expect(nil, "handled")
		}
		customer = "a"
		s.expect(errBoom, "1s")
	})
}

// A brake that no Subscriber uses has no fleet: the budget works as without it.
func TestBrakeWithoutFleet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSpender(t, budget.Config{
			Share: 0.5, Minimum: 2, Brake: outage.Brake{Name: "payments"}, Probes: 1,
		})
		s.expect(errBoom, "1s", "1m0s", "1m0s", "held back 1m0s")
		require.True(t, s.budget.Closed())
		require.Equal(t, header.BrakeState{Name: "payments"}, s.budget.State())
	})
}

// Given two DelayedRetry with one budget around a handler, when the inner one hands a failure over,
// then it counts once. As a success of the outer one it would start a brake.
func TestBudgetInTwoRetriesCountsAFailureOnce(t *testing.T) {
	t.Parallel()
	s := newSpender(t, budget.Config{Share: 0.5, Minimum: 10})
	outer, err := middleware.NewDelayedRetry(s.broker, backoff.List{time.Second},
		middleware.WithBudget(s.budget))
	require.NoError(t, err)
	h := s.retry.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, errBoom
	})
	_, err = outer.Middleware(h)(newMessage(delivery{}))
	require.NoError(t, err)
	require.Equal(t, "closed false, 1 deliveries, 1 failed, 1 retries", stateOf(s.budget))
}

// customers are handled with a budget for each customer.
type customers struct {
	t     *testing.T
	h     message.HandlerFunc
	err   error          // of the customer acme
	calls map[string]int // of the handler
	brake interface{ HearKey(seam.KeyNews) }
}

func newCustomers(t *testing.T) *customers {
	t.Helper()
	budget, err := budget.New(budget.Config{
		Share: 0.5, Minimum: 2, Brake: outage.Brake{Name: "endpoints"}, Keys: 2,
		Key: func(msg *message.Message) string { return msg.Metadata.Get("customer") },
	})
	require.NoError(t, err)
	c := &customers{t: t, err: errors.New("connection refused"), calls: map[string]int{}}
	retry := newRetry(t, middlewaretest.NewBroker(), middleware.WithBudget(budget))
	c.brake = seam.RetryOf(retry).Budgets[0].Brake().(interface{ HearKey(seam.KeyNews) })
	c.h = retry.Middleware(middlewaretest.Consumer(func(msg *message.Message) error {
		customer := msg.Metadata.Get("customer")
		c.calls[customer]++
		if customer == "acme" {
			return c.err
		}
		return nil
	}))
	c.deliver("acme")
	c.deliver("acme")
	require.False(t, c.deliver("acme"), "the key is stopped")
	return c
}

// deliver delivers a message, and reports whether the handler was called.
func (c *customers) deliver(customer string) (handled bool) {
	before := c.calls[customer]
	msg := newMessage(middleware.Delivery{})
	msg.Metadata.Set("customer", customer)
	_, _ = c.h(msg)
	return c.calls[customer] > before
}

// Given a stopped key, when its probes fail for a reason that says nothing about the downstream,
// then the key does not start, and the next probe comes soon.
func TestUndecidedProbesDoNotStartAKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCustomers(t)
		c.err = middleware.Permanent(errors.New("no such order"))
		for range 5 {
			time.Sleep(time.Second)
			require.True(t, c.deliver("acme"), "a probe")
			require.False(t, c.deliver("acme"), "the key is stopped")
		}
		c.err = nil
		time.Sleep(time.Second)
		for range 5 {
			require.True(t, c.deliver("acme"), "the key starts")
		}
	})
}

// Given a stopped key, when any client forges news of keys, then it is not forgotten, this instance
// probes it after some minutes at most, and probes that succeed start it.
func TestForgedNewsOfKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCustomers(t)
		forge := func(key string, kinds ...seam.KeyKind) {
			for _, kind := range kinds {
				c.brake.HearKey(seam.KeyNews{Key: key, Kind: kind})
			}
		}
		for i := range 1000 {
			forge(strconv.Itoa(i), seam.KeyStarted, seam.KeyProbed, seam.KeyFailed)
		}
		require.False(t, c.deliver("acme"), "the key is forgotten")
		require.True(t, c.deliver("globex"))
		for i := range 1000 {
			forge(strconv.Itoa(i), seam.KeyStopped)
		}
		require.False(t, c.deliver("acme"), "the key is forgotten")

		c.err = nil
		handled := 0
		for range 20 {
			time.Sleep(25 * time.Second)
			forge("acme", seam.KeyFailed, seam.KeyProbed)
			for range 3 {
				if c.deliver("acme") {
					handled++
				}
				forge("acme", seam.KeyFailed, seam.KeyProbed)
			}
		}
		require.GreaterOrEqual(t, handled, 3)
		require.True(t, c.deliver("acme"), "the key starts")
	})
}

// Given a stopped key whose messages are all set aside, when other keys come, then a key that was
// not seen for longer is forgotten.
func TestAStoppedKeyIsNotForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCustomers(t)
		for _, customer := range []string{"globex", "initech", "hooli"} {
			require.True(t, c.deliver(customer))
			require.False(t, c.deliver("acme"), "the key is stopped")
		}
	})
}
