package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/examples/internal/webhook"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

func TestMain(m *testing.M) { testbroker.Main(m, func() error { return goleak.Find() }) }

// Given twenty deliveries, which have every story once, then none is lost and the queues are gone.
func TestDemoLosesNothing(t *testing.T) {
	t.Parallel()
	for strategy, kind := range map[string]string{"perqueue": "quorum", "shared": "classic"} {
		t.Run(strategy+" "+kind, func(t *testing.T) {
			t.Parallel()
			url := testbroker.URL(t)
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), []string{
				"--url", url, "--strategy", strategy, "--type", kind, "--deliveries", "20", "--seed", "3",
			}, &stdout, &stderr)
			require.Empty(t, stderr.String())
			require.Zero(t, code, stdout.String())
			require.True(t, strings.HasSuffix(stdout.String(),
				"\npublished 20  delivered 17  dead-lettered 3  lost 0\n"), stdout.String())
			require.NotContains(t, stdout.String(), "\x1b")

			queue := strings.Fields(stdout.String())[1]
			for _, deleted := range []string{
				"", ".dlq", ".wait.250ms", ".wait.3s", ".wait.250ms.classic", ".wait.3s.classic", ".stranded",
			} {
				require.Equal(t, -1, testbroker.Depth(t, url, queue+deleted), deleted)
			}
			for _, deleted := range []string{".return", ".stranded", ".wait.3s.classic"} {
				err := testbroker.Channel(t, url).ExchangeDeclarePassive(queue+deleted, "direct", true, false,
					false, false, nil)
				require.ErrorContains(t, err, "NOT_FOUND")
			}
		})
	}
}

// cutter calls cut when a text is written.
type cutter struct {
	bytes.Buffer
	text string
	cut  func()
}

func (c *cutter) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(c.text)) {
		c.cut()
	}
	return c.Buffer.Write(p)
}

func TestInterruptedDemoSaysWhatIsUndecided(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stderr bytes.Buffer
	stdout := cutter{text: "  500ms  ", cut: cancel} // the first second attempt
	require.Equal(t, 1, run(ctx, []string{"--url", url, "--deliveries", "12"}, &stdout, &stderr))
	require.Equal(t, "webhooks: interrupted\n", stderr.String())
	require.Contains(t, stdout.String(), "  lost 0  still in a queue ")
}

func TestArguments(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		code int
		says string
	}{
		"help":         {[]string{"--help"}, 0, "Usage: webhooks"},
		"unknown flag": {[]string{"--urls", "x"}, 2, "flag provided but not defined"},
		"unknown strategy": {
			[]string{"--strategy", "own"}, 2, `unknown strategy "own": perqueue or shared`,
		},
		"unknown type": {[]string{"--type", "stream"}, 2, `unknown type "stream": quorum or classic`},
		"none":         {[]string{"--deliveries", "0"}, 2, "0 deliveries: from 1 to 1000"},
		"too many":     {[]string{"--deliveries", "1001"}, 2, "1001 deliveries: from 1 to 1000"},
		"argument":     {[]string{"now"}, 2, `unexpected argument "now"`},
		"no URL":       {[]string{"--url", "nowhere"}, 1, "AMQP URL is invalid"},
		"no broker": {
			[]string{"--url", "amqp://guest:secret@127.0.0.1:1/"}, 1, "connect to RabbitMQ at 127.0.0.1:1",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			require.Equal(t, test.code, run(t.Context(), test.args, &stdout, &stderr))
			require.Empty(t, stdout.String())
			require.Contains(t, stderr.String(), test.says)
			require.NotContains(t, stderr.String(), "secret")
		})
	}
}

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
		"dropped":   {script{dropped, dropped, accepted}, "handled after 3 attempts, delays 250ms 500ms"},
		"no answer": {script{hangs, accepted}, "handled after 2 attempts, delays 250ms"},
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
		})
	}
}

// Given the receiver's Retry-After in both forms, in the middle of a second, then the library reads
// the same delay.
func TestRetryAfterOfReceiver(t *testing.T) {
	t.Parallel()
	for _, date := range []bool{false, true} {
		header := http.Header{}
		setRetryAfter(header, answer{status: 429, after: 2 * time.Second, date: date},
			noon.Add(987*time.Millisecond))
		busy := middleware.RetryAfterHeader(errors.New("busy"), header, time.Hour)
		broker := middlewaretest.NewBroker()
		retry, err := webhook.NewRetry(broker)
		require.NoError(t, err)
		msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "webhooks"}, nil)
		handle := middlewaretest.Consumer(func(*message.Message) error { return busy })
		_, err = retry.Middleware(handle)(msg)
		require.NoError(t, err)
		require.Equal(t, 2*time.Second, broker.Calls()[0].Delay)
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
			"200", "400", "410", "429", "429 in 0s (date)", "500", "503", "dropped", "no answer",
		} {
			require.NotZero(t, answers[want], "%s, seed %d", want, seed)
		}
	}
}

func TestScriptEnds(t *testing.T) {
	t.Parallel()
	failing := answer{status: http.StatusInternalServerError}
	tests := map[string]struct {
		script   script
		attempts int
		dead     header.Reason
	}{
		"at once":            {script{accepted}, 1, ""},
		"after a failure":    {script{failing, accepted}, 2, ""},
		"at the last moment": {script{dropped, hangs, dropped, failing, accepted}, 5, ""},
		"too late": {
			script{dropped, hangs, dropped, failing, dropped, accepted}, 5, header.ReasonExhausted,
		},
		"never":         {script{failing}, 5, header.ReasonExhausted},
		"gone":          {script{{status: http.StatusGone}}, 1, header.ReasonPermanent},
		"refused later": {script{hangs, {status: http.StatusBadRequest}}, 2, header.ReasonPermanent},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			attempts, dead := test.script.end()
			require.Equal(t, test.attempts, attempts)
			require.Equal(t, test.dead, dead)
		})
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		answer answer
		text   string
		waits  []time.Duration // after the first failure, and after the fourth
	}{
		{answer{status: 500}, "500", []time.Duration{500 * time.Millisecond, 4 * time.Second}},
		{
			answer{status: 429, after: 3 * time.Second}, "429 in 3s",
			[]time.Duration{3 * time.Second, 4 * time.Second},
		},
		{
			answer{status: 429, after: time.Second, date: true}, "429 in 1s (date)",
			[]time.Duration{time.Second, 4 * time.Second},
		},
		{dropped, "dropped", []time.Duration{250 * time.Millisecond, 2 * time.Second}},
		{hangs, "no answer", []time.Duration{250 * time.Millisecond, 2 * time.Second}},
	}
	for _, test := range tests {
		t.Run(test.text, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.text, test.answer.String())
			require.Equal(t, test.waits, []time.Duration{test.answer.wait(1), test.answer.wait(4)})
		})
	}
}

var noon = time.Date(2025, 1, 2, 12, 0, 0, 0, time.UTC)

// book returns a ledger of two deliveries: tea is delivered at the second attempt, soup is refused.
func book() *ledger {
	l := newLedger([]planned{
		{id: "tea", script: script{{status: http.StatusInternalServerError}, accepted}},
		{id: "soup", script: script{{status: http.StatusGone}}},
	})
	l.published("tea")
	l.published("soup")
	return l
}

// settle enters the expected events, with the given delay before the second attempt at tea.
func settle(l *ledger, delay time.Duration) {
	l.request("tea", 1, noon, noon)
	l.request("soup", 1, noon, noon)
	l.deadLetter("soup", "permanent", "1")
	l.request("tea", 2, noon, noon.Add(delay))
}

const half = 500 * time.Millisecond

func TestLedgerOfGoodRun(t *testing.T) {
	t.Parallel()
	l := book()
	require.False(t, l.decided())
	settle(l, half)
	require.True(t, l.decided())
	require.Empty(t, l.faults())
}

func TestLedgerLines(t *testing.T) {
	t.Parallel()
	l := newLedger([]planned{{id: "tea", script: script{
		hangs, {status: 429, after: time.Second, date: true}, accepted,
	}}})
	// The first attempt was sent a little before it arrived. It lasts until the sender gives up.
	for i, test := range []struct {
		sent, at time.Time
		line     string
	}{
		{
			noon, noon.Add(100 * time.Millisecond),
			"tea                1  no answer                -         -\n",
		},
		{
			noon, noon.Add(2252 * time.Millisecond),
			"tea                2  429 in 1s (date)     250ms     252ms\n",
		},
		{
			noon, noon.Add(3255 * time.Millisecond),
			"tea                3  200                     1s    1.003s\n",
		},
	} {
		a, line := l.request("tea", i+1, test.sent, test.at)
		require.Equal(t, test.line, line)
		require.Equal(t, l.entries[0].script[i], a)
	}
	require.Equal(t, []time.Duration{2 * time.Millisecond, 3 * time.Millisecond}, l.late)
}

func TestLedgerFindsFaults(t *testing.T) {
	t.Parallel()
	const good = "published 2  delivered 1  dead-lettered 1  lost 0"
	tests := map[string]struct {
		run    func(l *ledger)
		faults []string
		sums   string
	}{
		"lost": {func(*ledger) {}, nil, "published 2  delivered 0  dead-lettered 0  lost 2"},
		"still waiting": {
			func(l *ledger) { l.foundIn("q.wait.1s", "tea") }, nil,
			"published 2  delivered 0  dead-lettered 0  lost 1  still in a queue 1",
		},
		"early by a little": {func(l *ledger) { settle(l, half-5*time.Millisecond) }, nil, good},
		"too early": {
			func(l *ledger) { settle(l, half-6*time.Millisecond) },
			[]string{"tea: attempt 2 came after 494ms, asked for were 500ms"}, good,
		},
		"delivered twice": {
			func(l *ledger) { settle(l, half); l.request("tea", 2, noon, noon.Add(time.Hour)) },
			[]string{
				"tea: request 3 is called attempt 2", "tea: delivered 2 times, dead-lettered 0 times",
				"tea: 3 attempts, expected 2", "the table has 1 delivered, the receiver answered 2xx 2 times",
			},
			good,
		},
		"delivered and not acked": {
			func(l *ledger) { settle(l, half); l.foundIn("q", "tea"); l.foundIn("q", "tea") },
			[]string{"tea: decided, and still in q"}, good,
		},
		"delivered and dead-lettered": {
			func(l *ledger) { settle(l, half); l.deadLetter("tea", "exhausted", "2") },
			[]string{
				"tea: delivered 1 times, dead-lettered 1 times",
				`tea: dead-lettered as "exhausted" after 2 failures, expected "" after 2`,
				"the table has 1 dead-lettered, the dead-letter queue has 2",
			},
			good,
		},
		"dead-lettered for another reason": {
			func(l *ledger) {
				l.request("soup", 1, noon, noon)
				l.deadLetter("soup", "exhausted", "2")
			},
			[]string{`soup: dead-lettered as "exhausted" after 2 failures, expected "permanent" after 1`},
			"published 2  delivered 0  dead-lettered 1  lost 1",
		},
		"more attempts than are allowed": {
			func(l *ledger) {
				l.deadLetter("soup", "permanent", "6")
				for i := range 6 {
					l.request("soup", i+1, noon, noon.Add(time.Duration(i)*time.Hour))
				}
			},
			[]string{"soup: 6 attempts, expected 1"},
			"published 2  delivered 0  dead-lettered 1  lost 1",
		},
		"somebody else's": {
			func(l *ledger) { settle(l, half); l.foundIn("q", "salad"); l.request("salad", 1, noon, noon) },
			[]string{`"salad" is no delivery of this demo`, `"salad" is no delivery of this demo`}, good,
		},
		"a dead letter of somebody else": {
			func(l *ledger) { settle(l, half); l.deadLetter("salad", "permanent", "1") },
			[]string{
				`"salad" is no delivery of this demo`,
				"the table has 1 dead-lettered, the dead-letter queue has 2",
			},
			good,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := book()
			test.run(l)
			require.Subset(t, l.faults(), test.faults)
			require.Len(t, l.faults(), len(test.faults))
			require.Contains(t, l.report().String()+"\n", "\n"+test.sums+"\n")
		})
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	l := newLedger(append([]planned{
		{id: "cake", script: script{accepted}},
		{id: "bread", script: script{{status: 400}}},
		{id: "water", script: script{{status: 400}}},
		{id: "not published", script: script{accepted}},
	}, book().entries[0].planned, book().entries[1].planned))
	for _, e := range l.entries {
		if e.id != "not published" {
			l.published(e.id)
		}
	}
	settle(l, 503*time.Millisecond)
	l.request("cake", 1, noon, noon)
	for _, id := range []string{"bread", "water"} {
		l.request(id, 1, noon, noon)
		l.deadLetter(id, "permanent", "1")
	}
	require.Empty(t, l.faults())
	require.Equal(t, `delivered
  1 attempt                    1
  2 attempts                   1
dead-lettered
  permanent, last 400          2
  permanent, last 410          1
lateness of 1 retries: p50 3ms, p99 3ms

published 5  delivered 2  dead-lettered 3  lost 0`, l.report().String())
	require.False(t, l.decided())
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1)*time.Millisecond)
	}
	tests := map[string]struct {
		values []time.Duration
		p      float64
		want   time.Duration
	}{
		"of nothing":       {nil, 50, 0},
		"of one":           {hundred[6:7], 99, 7 * time.Millisecond},
		"lower of two":     {hundred[:2], 50, time.Millisecond},
		"upper of two":     {hundred[:2], 51, 2 * time.Millisecond},
		"half of hundred":  {hundred, 50, 50 * time.Millisecond},
		"p99 of hundred":   {hundred, 99, 99 * time.Millisecond},
		"least of hundred": {hundred, 0, time.Millisecond},
		"most of hundred":  {hundred, 100, 100 * time.Millisecond},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, percentile(test.values, test.p))
		})
	}
}
