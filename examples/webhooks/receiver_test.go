package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/examples/internal/webhook"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

// Given the real sender and the real receiver without a broker, then each story has its outcome.
func TestSenderMeetsReceiver(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		script  script
		outcome string
	}{
		"delivered": {script{accepted}, "handled after 1 attempt"},
		"400":       {script{{status: 400}}, "dead-lettered (permanent) after 1 attempt"},
		"500":       {script{{status: 500}, accepted}, "handled after 2 attempts, delays 500ms"},
		"503": {
			script{{status: 503}}, "dead-lettered (exhausted) after 5 attempts, delays 500ms 1s 2s 4s",
		},
		"429": {
			script{{status: 429, after: 3 * time.Second}, accepted}, "handled after 2 attempts, delays 3s",
		},
		"429 in little": {
			script{{status: 500}, {status: 429, after: 1}, accepted},
			"handled after 3 attempts, delays 500ms 1s",
		},
		"429 date": {
			script{{status: 429, after: 2 * time.Second, date: true}, accepted},
			"handled after 2 attempts, delays 2s",
		},
		"dropped": {
			script{dropped, dropped, accepted}, "handled after 3 attempts, delays 250ms 500ms",
		},
		"no answer": {script{hangs, accepted}, "handled after 2 attempts, delays 250ms"},
		"at the last moment": {
			script{{status: 500}, dropped, dropped, dropped, accepted},
			"handled after 5 attempts, delays 500ms 500ms 1s 2s",
		},
		"too late": {
			script{dropped, dropped, dropped, {status: 500}, dropped, accepted},
			"dead-lettered (exhausted) after 5 attempts, delays 250ms 500ms 1s 4s",
		},
		"refused later": {
			script{hangs, {status: 400}}, "dead-lettered (permanent) after 2 attempts, delays 250ms",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLedger([]planned{{id: "a", script: test.script}})
			r, err := startReceiver(l, func(string) {})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, r.close()) })
			s := webhook.NewSender(lanes)
			t.Cleanup(s.Close)
			payload, err := json.Marshal(webhook.Delivery{ID: "a", URL: r.url + "a"})
			require.NoError(t, err)

			broker := middlewaretest.NewBroker()
			retry, err := webhook.NewRetry(broker)
			require.NoError(t, err)
			msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "webhooks"}, payload)
			result := broker.Run(retry.Middleware(middlewaretest.Consumer(s.Deliver)), msg)
			require.Equal(t, test.outcome, result.String())
			attempts, dead := test.script.end() // as the demo expects it
			require.Equal(t, result.Attempts, attempts)
			require.Equal(t, result.State.Reason, dead)
		})
	}
}

func TestSameSeedDealsSamePlan(t *testing.T) {
	t.Parallel()
	require.Equal(t, deal(200, 7), deal(200, 7))
	require.NotEqual(t, deal(200, 7), deal(200, 8))
}

// Given any seed, then the plan has every answer of a receiver and every end of a delivery.
func TestPlanHasEveryAnswerAndEnd(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		answers, ends, ids := map[string]int{}, map[header.Reason]int{}, map[string]bool{}
		for _, p := range deal(200, seed) {
			ids[p.id] = true
			attempts, dead := p.script.end()
			ends[dead]++
			for attempt := 1; attempt <= attempts; attempt++ {
				a := p.script.at(attempt)
				answers[answer{status: a.status, date: a.date, hang: a.hang}.String()]++
			}
		}
		require.Len(t, ids, 200)
		require.Equal(t, map[header.Reason]int{
			"": 170, header.ReasonPermanent: 20, header.ReasonExhausted: 10,
		}, ends)
		for _, want := range []string{
			"200", "400", "410", "429", "429 in 0s (date)", "500", "503",
			"dropped", "no answer",
		} {
			require.NotZero(t, answers[want], "%s, seed %d", want, seed)
		}
	}
}
