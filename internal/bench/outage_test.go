package main

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware"
)

// Given a downstream that bears three calls a second, when it gets a fourth within a second, then
// it answers 503 for good. Calls while it is out do not count.
func TestDownstreamFallsOver(t *testing.T) {
	t.Parallel()
	d := &downstream{limit: 3}
	now := time.Now()
	at := func(ms int) time.Time { return now.Add(time.Duration(ms) * time.Millisecond) }
	for n := range 10 {
		require.True(t, d.take(at(n-5000), n, false), "it has not been out")
	}
	d.setOut(true)
	for n := range 10 {
		require.False(t, d.take(at(n), n, false))
	}
	d.setOut(false)
	for n, ms := range []int{0, 800, 400, 1100, 1500} { // one is late
		require.True(t, d.take(at(ms), n, false), "three within each second")
	}
	require.False(t, d.take(at(1600), 5, false))
	require.Equal(t, at(1600), d.fell())
	require.False(t, d.take(at(9000), 6, false), "it has fallen over for good")
	require.Equal(t, 10, d.handled(), "the same ten messages")
}

func TestDownstreamAnswers(t *testing.T) {
	t.Parallel()
	d, err := startDownstream(300, time.Millisecond)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.close()) })
	post := func(path string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+path, http.NoBody)
		require.NoError(t, err)
		req.Header.Set(probeHeader, "1")
		req.Header.Set(sentHeader, strconv.FormatInt(time.Now().UnixNano(), 10))
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	assert.Equal(t, http.StatusOK, post("7"))
	assert.Equal(t, http.StatusBadRequest, post("seven"))
	d.setOut(true)
	assert.Equal(t, http.StatusServiceUnavailable, post("8"))
	calls := d.all()
	require.Len(t, calls, 2)
	assert.True(t, calls[0].ok && calls[0].probe && calls[0].message == 7)
	assert.False(t, calls[1].ok)
}

// Given a story of ten messages, then each figure counts what its name says.
func TestFiguresOfAnOutage(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	at := func(seconds float64) time.Time {
		return begin.Add(time.Duration(seconds * float64(time.Second)))
	}
	s := &story{
		contender: brake, limit: 300, ready: at(-2), out: at(0), back: at(12), end: at(20),
		first: tally{at: at(-0.5), received: 100, moved: 10, acked: 50},
		last:  tally{at: at(10), received: 126, moved: 14, acked: 70},
		calls: []call{
			{at: at(-1), message: 0, ok: true},
			{at: at(-0.9), message: 1, ok: true},
			{at: at(0.5), message: 2}, // within the first two seconds
			{at: at(3), message: 3},
			{at: at(3.1), message: 4}, // late, and no probes
			{at: at(9), message: 3, probe: true},
			{at: at(13), message: 3, probe: true, ok: true},
			{at: at(13.5), message: 4, ok: true},
			{at: at(13.6), message: 4, ok: true}, // a duplicate
			{at: at(13.7), message: 2, ok: true},
		},
		notes: []note{
			{Kind: middleware.EventRetried, At: at(0.6), Message: "2"},
			{Kind: middleware.EventRetried, At: at(3.2), Message: "3"},
			{Kind: middleware.EventRetried, At: at(3.3), Message: "3"}, // the same message again
			{Kind: middleware.EventSnoozed, At: at(3.4), Message: "4"}, // no attempt
			{Kind: middleware.EventRetried, At: at(14), Message: "5"},  // not while it is out
		},
		drained: at(15),
		left:    left{waiting: map[int]bool{5: true}, dead: map[int]bool{6: true, 5: true}, tokens: 1},
	}
	for _, seconds := range []float64{-2, -1.5, 0, 1, 2, 3, 4, 11} { // seven is lost
		s.published = append(s.published, at(seconds))
	}
	r := run{Results: s.results()}
	for metric, want := range map[string]float64{
		callsOut: 0.3, callsOutWorst: 2, lastCallOut: 3.1,
		// 26 publishes and 4 moves, of which 5 publishes are the producer's, within 10 s.
		writesOut: 2.5, acksOut: 2,
		firstSuccess: 1, firstNoProbe: 1.5, callsBackWorst: 4, drainedAfter: 3,
		secondsOut: 12, callsLimit: 300, messages: 8, handledOnce: 5, handledTwice: 1,
		leftWaiting: 0, leftDead: 2, lost: 1, attemptsFirst: 1, attemptsLater: 1, tokensLeft: 1,
	} {
		got := r.samples(outageFigures, 0, brake, metric)
		require.Len(t, got, 1, metric)
		assert.InDelta(t, want, got[0], 1e-6, metric)
	}
	require.Empty(t, r.samples(outageFigures, 0, brake, fellAfter), "it did not fall over")
	assert.Equal(t, []float64{4}, r.samples(outageCurves, 13, brake, callsCurve))
	assert.Equal(t, []float64{4}, r.samples(outageCurves, 4, brake, backlogCurve),
		"six are published and two handled")
}

func TestAimsOfAnOutage(t *testing.T) {
	t.Parallel()
	r := run{Results: []result{
		{outageFigures, 0, brake, writesOut, []float64{30}},
		{outageFigures, 0, perBudget, writesOut, []float64{500}},
		{outageFigures, 0, brake, callsOut, []float64{2}},
		{outageFigures, 0, brake, lost, []float64{1}},
	}}
	got := map[string]string{}
	for _, a := range outageAims() {
		_, verdict := a.check(r)
		got[a.metric] = verdict
	}
	assert.Equal(t, "missed", got[writesOut], "30 of 500 are 6 %")
	assert.Equal(t, "met", got[callsOut])
	assert.Equal(t, "missed", got[lost])
	assert.Equal(t, "not measured", got[firstSuccess])
}

// A letter in the dead-letter queue and a copy of it that waits are one message.
func TestLeftMessages(t *testing.T) {
	t.Parallel()
	l := left{waiting: map[int]bool{}, dead: map[int]bool{}}
	require.NoError(t, l.add(amqp.Delivery{Body: []byte("7")}, false))
	require.NoError(t, l.add(amqp.Delivery{Body: []byte("7")}, true))
	require.Error(t, l.add(amqp.Delivery{Body: []byte("seven")}, true))
	assert.Equal(t, 1, l.copies)
	assert.True(t, l.waiting[7] && l.dead[7])
}
