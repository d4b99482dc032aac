package middleware_test

import (
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/seam"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/budget"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
	"github.com/millpond-go/millpond/middleware/outage"
)

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
	c.brake = retry.Budgets()[0].Seam().Brake().(interface{ HearKey(seam.KeyNews) })
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
