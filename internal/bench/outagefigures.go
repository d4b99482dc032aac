package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/millpond-go/millpond/middleware"
)

// The groups of the results of an outage: figures, and curves whose x is the second since the
// downstream was out.
const (
	outageFigures = "outage"
	outageCurves  = "outage-curves"
)

// The figures of an outage.
const (
	callsOut       = "calls a second while out"
	callsOutWorst  = "calls in the worst second while out"
	lastCallOut    = "seconds until the fleet only probed"
	writesOut      = "writes a second while out"
	acksOut        = "acks a second while out"
	firstSuccess   = "seconds from back to the first success"
	firstNoProbe   = "seconds from back to the first success but probes"
	callsBackWorst = "calls in the worst second after it was back"
	fellAfter      = "seconds from back until it fell over"
	drainedAfter   = "seconds from back until the backlog was gone"
	secondsOut     = "seconds out"
	callsLimit     = "calls a second that it bears"
	messages       = "messages"
	handledOnce    = "messages handled"
	handledTwice   = "calls that succeeded again"
	leftWaiting    = "messages that wait at the end"
	leftDead       = "messages that are dead"
	lost           = "messages lost"
	attemptsFirst  = "messages with an attempt spent in the first 2 s"
	attemptsLater  = "messages with an attempt spent later while out"
	tokensLeft     = "tokens left"
	callsCurve     = "calls per second"
	backlogCurve   = "backlog"
)

// grace is the time after which the bounds of an outage hold.
const grace = 2 * time.Second

// results returns the figures and curves of a story. Figures that it does not have are left out.
func (s *story) results() []result {
	var list []result
	figure := func(metric string, value float64) {
		list = append(list, result{outageFigures, 0, s.contender, metric, []float64{value}})
	}
	since := func(metric string, begin, at time.Time) {
		if !at.IsZero() {
			figure(metric, at.Sub(begin).Seconds())
		}
	}
	figure(secondsOut, s.back.Sub(s.out).Seconds())
	figure(callsLimit, float64(s.limit))
	bounded := s.times(s.out.Add(grace), s.back, func(call) bool { return true })
	figure(callsOut, float64(len(bounded))/s.back.Sub(s.out.Add(grace)).Seconds())
	figure(callsOutWorst, float64(worstSecond(bounded)))
	noProbe := func(c call) bool { return !c.probe }
	if calls := s.times(s.out, s.back, noProbe); len(calls) > 0 {
		since(lastCallOut, s.out, calls[len(calls)-1])
	}
	seconds := s.last.at.Sub(s.out).Seconds()
	writes := s.last.received - s.first.received + s.last.moved - s.first.moved -
		between(s.published, s.first.at, s.last.at)
	figure(writesOut, float64(writes)/seconds)
	figure(acksOut, float64(s.last.acked-s.first.acked)/seconds)
	since(firstSuccess, s.back, s.firstCall(func(c call) bool { return c.ok }))
	since(firstNoProbe, s.back, s.firstCall(func(c call) bool { return c.ok && !c.probe }))
	after := s.times(s.back, s.end, func(call) bool { return true })
	figure(callsBackWorst, float64(worstSecond(after)))
	since(fellAfter, s.back, s.fell)
	since(drainedAfter, s.back, s.drained)
	s.account(figure)
	early, late := s.attempts()
	figure(attemptsFirst, float64(early))
	figure(attemptsLater, float64(late))
	if s.contender == brake && s.fell.IsZero() { // otherwise it is stopped again
		figure(tokensLeft, float64(s.left.tokens))
	}
	return append(list, s.curves()...)
}

// account says where each message is.
func (s *story) account(figure func(metric string, value float64)) {
	ok := map[int]int{}
	again := 0
	for _, c := range s.calls {
		if c.ok {
			if ok[c.message]++; ok[c.message] > 1 {
				again++
			}
		}
	}
	gone, wait, dead := 0, 0, 0
	for n := range s.published {
		switch {
		case ok[n] > 0:
		case s.left.dead[n]:
			dead++
		case s.left.waiting[n]:
			wait++
		default:
			gone++
		}
	}
	figure(messages, float64(len(s.published)))
	figure(handledOnce, float64(len(ok)))
	figure(handledTwice, float64(again))
	figure(leftWaiting, float64(wait))
	figure(leftDead, float64(dead))
	figure(lost, float64(gone))
}

// attempts counts the messages that failed an attempt while the downstream was out.
func (s *story) attempts() (early, late int) {
	first, later := map[string]bool{}, map[string]bool{}
	for _, n := range s.notes {
		if n.Kind != middleware.EventRetried && n.Kind != middleware.EventDeadLettered ||
			n.At.Before(s.out) || n.At.After(s.back) {
			continue
		}
		if n.At.Before(s.out.Add(grace)) {
			first[n.Message] = true
		} else {
			later[n.Message] = true
		}
	}
	return len(first), len(later)
}

// times returns the times of calls.
func (s *story) times(from, until time.Time, which func(call) bool) []time.Time {
	var times []time.Time
	for _, c := range s.calls {
		if !c.at.Before(from) && c.at.Before(until) && which(c) {
			times = append(times, c.at)
		}
	}
	return times
}

// firstCall returns the time of the first call after the downstream was back.
func (s *story) firstCall(which func(call) bool) time.Time {
	if times := s.times(s.back, s.end, which); len(times) > 0 {
		return times[0]
	}
	return time.Time{}
}

// worstSecond returns the most times within any second. They are in order.
func worstSecond(times []time.Time) int {
	most, begin := 0, 0
	for i, at := range times {
		for at.Sub(times[begin]) >= time.Second {
			begin++
		}
		most = max(most, i-begin+1)
	}
	return most
}

// between counts the times after from and until the other.
func between(times []time.Time, from, until time.Time) int {
	n := 0
	for _, at := range times {
		if at.After(from) && !at.After(until) {
			n++
		}
	}
	return n
}

// curves returns the calls and the backlog of each second. The backlog are the messages that no
// call has handled yet, wherever they are.
func (s *story) curves() []result {
	first := make(map[int]bool)
	var done []time.Time
	for _, c := range s.calls {
		if c.ok && !first[c.message] {
			first[c.message] = true
			done = append(done, c.at)
		}
	}
	var list []result
	point := func(x int, metric string, value int) {
		list = append(list,
			result{outageCurves, float64(x), s.contender, metric, []float64{float64(value)}})
	}
	begin, end := s.ready.Sub(s.out), s.end.Sub(s.out)
	for x := int(math.Ceil(begin.Seconds())); x < int(end.Seconds()); x++ {
		from := s.out.Add(time.Duration(x) * time.Second)
		calls := s.times(from, from.Add(time.Second), func(call) bool { return true })
		point(x, callsCurve, len(calls))
		point(x, backlogCurve, between(s.published, s.ready, from)-between(done, s.ready, from))
	}
	return list
}

// outageAim bounds a figure of the brake.
type outageAim struct {
	metric string
	most   float64
	// by is the contender whose same figure the bound is a share of.
	by string
}

func outageAims() []outageAim {
	return []outageAim{
		{metric: callsOut, most: 2},
		{metric: callsOutWorst, most: 2},
		{metric: writesOut, most: 0.05, by: perBudget},
		{metric: firstSuccess, most: 2},
		{metric: firstNoProbe, most: 2},
		{metric: callsBackWorst, most: 300},
		{metric: lost},
		{metric: leftDead},
		{metric: attemptsLater},
		{metric: tokensLeft},
	}
}

// check returns the figure that the aim bounds, and a word about it.
func (a outageAim) check(r run) (value float64, verdict string) {
	of := func(contender string) (float64, bool) {
		samples := r.samples(outageFigures, 0, contender, a.metric)
		if len(samples) == 0 {
			return 0, false
		}
		return samples[0], true
	}
	value, ok := of(brake)
	if a.by != "" {
		base, also := of(a.by)
		value, ok = value/base, ok && also
	}
	switch {
	case !ok:
		return math.NaN(), "not measured"
	case value <= a.most:
		return value, "met"
	}
	return value, "missed"
}

// printOutage writes the aims of the brake and the figures of all contenders.
func printOutage(out io.Writer, r run) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "\nThe aims of the brake.")
	fmt.Fprintln(out)
	for _, a := range outageAims() {
		value, verdict := a.check(r)
		about := a.metric
		if a.by != "" {
			about += ", by " + a.by
		}
		fmt.Fprintf(table, "%s\t%s\taim ≤ %g\t%s\n", about, outageCell(value), a.most, verdict)
	}
	_ = table.Flush()
	var contenders, metrics []string
	for _, one := range r.Results {
		if one.Group != outageFigures {
			continue
		}
		if !slices.Contains(contenders, one.Entry) {
			contenders = append(contenders, one.Entry)
		}
		if !slices.Contains(metrics, one.Metric) {
			metrics = append(metrics, one.Metric)
		}
	}
	fmt.Fprintln(out, "\nAll figures.")
	fmt.Fprintln(out)
	for _, contender := range contenders {
		fmt.Fprintf(table, "\t%s", contender)
	}
	fmt.Fprintln(table)
	for _, metric := range metrics {
		fmt.Fprint(table, metric)
		for _, contender := range contenders {
			cell := "–"
			if samples := r.samples(outageFigures, 0, contender, metric); len(samples) > 0 {
				cell = outageCell(samples[0])
			}
			fmt.Fprint(table, "\t", cell)
		}
		fmt.Fprintln(table)
	}
	_ = table.Flush()
}

// outageCell writes counts in full and other figures with three digits.
func outageCell(value float64) string {
	if value == math.Trunc(value) {
		return strconv.FormatFloat(value, 'f', -1, 64)
	}
	return short(value)
}
