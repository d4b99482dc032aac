package operate_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/operate"
)

// Given all that can be wrong, then the most urgent is first, and each has its words, its beginning
// and its growth.
func TestIncidents(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	count := func(n int) operate.Count { return operate.Count{N: n, Source: operate.SourceManagement} }
	queue := func(name string, ready, consumers, dead int) operate.Main {
		return operate.Main{
			Queue:       operate.Queue{Name: name, Ready: count(ready), Consumers: count(consumers)},
			DeadLetters: count(dead), Waiting: count(0),
			Dead: []operate.Dead{{Queue: operate.Queue{Name: name + ".dlq", Total: count(dead)}}},
		}
	}
	with := func(m operate.Main, change func(m *operate.Main)) operate.Main { change(&m); return m }
	rate := 0.2
	v := operate.View{
		Mains: []operate.Main{
			queue("fine", 3, 1, 0), queue("garbage", 0, 1, 900), queue("grows", 0, 1, 40),
			with(queue("comes", 0, 1, 2), func(m *operate.Main) { m.Dead[0].In = &rate }),
			queue("down", 12, 0, 0), queue("idle", 0, 0, 0), queue("braked", 7, 0, 0),
			with(queue("empty", 0, 0, 0), func(m *operate.Main) { m.Waiting = count(1) }),
			with(queue("keyed", 0, 1, 1), func(m *operate.Main) {
				m.Keys = &operate.OrderState{Keys: []operate.OrderKey{
					{Key: "k", Mark: "1", Blocked: noon, Waiting: 2},
				}}
			}),
			with(queue("limited", 0, 1, 0), func(m *operate.Main) {
				m.Findings = []operate.Finding{{
					Severity: operate.Critical, Problem: operate.Overruled, Kind: "queue", Name: "limited.dlq",
					Text: `policy "p" sets max-length to 1: the oldest are deleted; exempt it`,
				}}
			}),
			with(queue("held", 0, 1, 0), func(m *operate.Main) { m.Held = count(5) }),
			with(queue("crooked", 0, 1, 0), func(m *operate.Main) { m.PlanErr = errors.New("x") }),
			with(queue("unmatched", 0, 1, -1), func(m *operate.Main) { m.Dead = nil }),
		},
		Gone: []operate.Gone{{Queue: "mail", Messages: 1, First: noon, Fate: operate.FateLost}},
		Stranded: []operate.Queue{
			{Name: "stranded", Total: count(3)}, {Name: "uncounted", Total: operate.Count{N: -1}},
		},
		Orphans: []operate.Orphan{
			{Wait: operate.Wait{Queue: operate.Queue{Name: "w", Total: count(4)}}, Why: "why"},
			{Wait: operate.Wait{Queue: operate.Queue{Name: "w2", Total: count(0)}}},
		},
		Brakes: []operate.Brake{{Name: "pay", Queues: []string{"braked"}}},
		Stopped: []header.BrakeState{{
			Name: "pay", Manual: true, Since: noon, Until: noon, By: "anna", Cause: "it moves",
		}},
	}
	var told []string
	ids := map[string]bool{}
	for _, i := range v.Incidents(operate.IncidentOptions{
		Since: func(i operate.Incident) (time.Time, bool) {
			if i.Kind == operate.IncidentUnconsumed {
				return noon.Add(time.Minute), i.Queue == "down"
			}
			return time.Time{}, false
		},
		Grown: func(queue string) (int, time.Time) {
			return map[string]int{"grows": 40}[queue],
				map[string]time.Time{"grows": noon, "garbage": noon}[queue]
		},
		KeyText: func(string) string { return "(masked)" },
	}) {
		require.False(t, ids[i.ID()], "%v", i)
		ids[i.ID()] = true
		text := fmt.Sprintf("%d %s%s: %s", i.Urgency, i.Queue, i.Brake, i.Text)
		if !i.Since.IsZero() {
			text += i.Since.Format(" [15:04]")
		}
		if i.Longer {
			text += " longer"
		}
		if !i.GrownSince.IsZero() {
			text += fmt.Sprintf(" %+d", i.Grown)
		}
		told = append(told, text)
		require.Equal(t, i.Brake != "", i.Concerns("braked"), i.Text)
	}
	require.Equal(t, []string{
		"1 mail: 1 message waits for it, and it is gone; the first returns at " +
			"2026-03-01 12:00:00Z: start its service in time, or they are LOST",
		`1 limited: queue "limited.dlq": policy "p" sets max-length to 1: the oldest are deleted`,
		"2 down: no consumer for 12 ready messages, or a brake is stopped [12:01] longer",
		"2 empty: no consumer, and 1 message waits to come back, or a brake is stopped [12:01]",
		"3 held: 5 messages past their wait and held: their target is missing or full",
		"3 w: 4 messages wait in it and lead to no queue: why",
		"3 stranded: 3 messages lost their queue while they waited",
		"3 crooked: a wait queue leads astray: see verify",
		"4 keyed: key (masked) is blocked by a dead letter, 2 behind it [12:00]",
		"5 grows: 40 dead letters +40",
		"5 comes: 2 dead letters",
		"6 pay: stopped by hand by anna, ends at 2026-03-01 12:00:00Z: it moves [12:00]",
		"7 garbage: 900 dead letters +0",
		"7 idle: no consumer, and nothing is in it, or a brake is stopped [12:01]",
		"7 unmatched: its dead-letter queue is not known: see --dlq",
	}, told)
	mains, of := v.ByUrgency(v.Incidents(operate.IncidentOptions{}))
	require.Equal(t, []string{"limited", "down", "fine"},
		[]string{mains[0].Name, mains[1].Name, mains[len(mains)-1].Name})
	require.Equal(t, "pay", of["braked"][0].Brake)
	require.Equal(t, "2 dead letters, and more come now", of["comes"][0].Text)
}

// A sentence for every state that a brake may have.
func TestTextOfABrake(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for want, b := range map[string]header.BrakeState{
		"stopped by shop@a/7: 9 of 10 failed; shop@b/8 probes": {
			Since: noon, By: "shop@a/7", Cause: "9 of 10 failed", Prober: "shop@b/8",
		},
		"stopped by shop@a/7; no process probes": {Since: noon, By: "shop@a/7"},
		"stopped by hand, ends at 2026-03-01 13:00:00Z": {
			Since: noon, Manual: true, Until: noon.Add(time.Hour),
		},
		"stopped; the process that probes does not answer, so nothing more is known": {},
		"stopped by shop@a/7; processes say so, and the process that probes does not answer": {
			Since: noon, By: "shop@a/7", Prober: "shop@b/8", Unknown: true,
		},
	} {
		v := operate.View{Stopped: []header.BrakeState{b}}
		require.Equal(t, want, v.Incidents(operate.IncidentOptions{})[0].Text)
	}
}
