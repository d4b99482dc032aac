package middleware_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

// Given a policy for a handler whose name is misspelled, when each handler has had a message, then
// one line names the selector.
func TestASelectorThatMatchesNothingIsNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logger, broker := watermill.NewCaptureLogger(), newBroker()
		retry := newRetry(t, broker, withLogger(logger),
			policyFor(selector{Handler: "mial", Queue: "mails"}, backoff.None{}),
			policyFor(selector{Queue: "orders"}, backoff.None{}),
			policyFor(selector{Error: middleware.NetworkErrors()}, backoff.None{}))
		handle := map[string]func(){}
		for _, name := range []string{"mail", "orders"} {
			h := retry.Middleware(succeeds)
			handle[name] = func() {
				broker.Run(h, middlewaretest.NewMessage(delivery{Handler: name, Queue: name}, nil))
			}
		}
		lines := func() (selectors []any) {
			for _, line := range logger.Captured()[watermill.ErrorLogLevel] {
				selectors = append(selectors, line.Fields["selector"])
			}
			return selectors
		}
		handle["mail"]()
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Empty(t, lines(), "the other handler may be the one")
		handle["orders"]()
		time.Sleep(time.Hour)
		synctest.Wait()
		handle["orders"]()
		assert.Equal(t, []any{`handler "mial", queue "mails"`}, lines())
	})
}
