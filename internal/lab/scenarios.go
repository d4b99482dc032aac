package main

import "time"

// scenario says what a run does, and what its judge asks.
type scenario struct {
	name     string
	settings settings
	schedule func(settings) schedule // nil: nothing breaks
	rules    []rule
	early    []rule // may end a run, and judge it alone then
	// simulate takes the place of all else in a scenario without a broker.
	simulate func() *report
}

var scenarios = []*scenario{chaos, ordered, outages, overload, soak}

// everyDelay are the delays before the second attempt, the third, and so on.
var everyDelay = []time.Duration{time.Second, 2 * time.Second, time.Second, 4 * time.Second}

// chaos lets everything break on a cluster, with all strategies of copies at once.
var chaos = &scenario{
	name: "chaos",
	settings: settings{
		Length: 5 * time.Minute, Nodes: 3, Queues: 1000, Instances: 3, Strategy: allStrategies,
		Concurrency: 2, Prefetch: 20, Delays: everyDelay, Keys: producing, Rate: 60,
		Fates: fates{
			Fail: 320, Dead: 50, Permanent: 30, Retries: len(everyDelay), Panics: 25, Slow: 20,
			Priorities: true,
		},
		Bound: 90 * time.Second,
	},
	schedule: func(s settings) schedule {
		broker := map[faultKind]int{
			killNode: 5, freezeNode: 2, restartNode: 1, raiseAlarm: 2,
		}
		if s.Nodes > 2 {
			broker[minority], broker[pauseNode] = 1, 1
		}
		clients := map[faultKind]int{
			killInstance: 5, stopInstance: 1, cutAll: 2, silenceNode: 1, delayConfirms: 1, applyPolicy: 2,
		}
		return newSchedule(s.Seed, s.Length, []lane{
			{broker, 2 * time.Second, 7 * time.Second, time.Second, 12 * time.Second, false},
			{clients, 3 * time.Second, 9 * time.Second, 2 * time.Second, 12 * time.Second, false},
		}, s.Only)
	},
	rules: []rule{
		nothingIsLost, faultsExplainCopies, attemptsFollowThePolicy, nothingStandsStill,
	},
}

// ordered lets everything break around the messages of a thousand keys, most of it at the instance
// that leads.
var ordered = &scenario{
	name: "keys",
	settings: settings{
		Length: 5 * time.Minute, Nodes: 1, Timer: 5 * time.Second, Instances: 3, Strategy: keyStrategy,
		Concurrency: 32, Keys: 1000, Rate: 300, Heartbeat: 2 * time.Second,
		Delays: []time.Duration{
			50 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second,
			2 * time.Second,
		},
		Fates: fates{Fail: 100, Dead: 2, Retries: 5, Slow: 10},
		Bound: 20 * time.Second,
	},
	schedule: func(s settings) schedule {
		deck := map[faultKind]int{
			killInstance: 1, freezeInstance: 1, restartNode: 1, killNode: 1, cutAll: 1, cutInstance: 1,
			silenceInstance: 1,
		}
		// A broker gives a client up after two heartbeats and a bit.
		return newSchedule(s.Seed, s.Length, []lane{
			{deck, 2 * time.Second, 7 * time.Second, s.Heartbeat / 4, 5 * s.Heartbeat, true},
		}, s.Only)
	},
	rules: []rule{
		nothingIsLost, nothingIsLeft, attemptsFollowThePolicy, keysKeepTheirOrder, nothingStandsStill,
	},
	early: []rule{keysKeepTheirOrder},
}

// soak loads a service steadily. Nothing breaks, and nothing may grow.
var soak = &scenario{
	name: "soak",
	settings: settings{
		Length: 10 * time.Minute, Nodes: 1, Timer: 5 * time.Second, Instances: 1,
		Strategy: "perqueue", Concurrency: 8, Prefetch: 20, Keys: producing, Rate: 500,
		Samples: time.Minute, Delays: []time.Duration{200 * time.Millisecond, 500 * time.Millisecond},
		Fates: fates{Fail: 200, Retries: 2}, Bound: 10 * time.Second,
	},
	rules: []rule{
		nothingIsLost, faultsExplainCopies, attemptsFollowThePolicy, nothingIsLeft, nothingGrows,
		nothingStandsStill,
	},
}
