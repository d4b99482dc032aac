package main

import "fmt"

// kinds are the faults that make no second copy, as handover.pml numbers them. With two of the
// other faults the states take longer than `make model` may.
var kinds = []struct {
	number int
	name   string
	model  string
}{
	{3, "one message, two outages", "-DMESSAGES=1 -DFAULTS=2 -DLIMIT=7"},
	{3, "two messages, one outage", "-DFAULTS=1 -DLIMIT=4"},
	{4, "two messages, two queues vanish", "-DFAULTS=2 -DLIMIT=9"},
	{5, "two messages, two ways back lost", "-DFAULTS=2 -DLIMIT=9"},
}

// searches are the searches of the model as it is.
var searches = allSearches()

func allSearches() []search {
	all := []search{
		{
			name:  "two messages, any number of shutdowns",
			model: "-DFAULTS=0 -DCOPIES=5 -DLIMIT=4", pan: exact, run: deep, states: 10_000,
		},
		{
			name:  "one message, any fault",
			model: "-DMESSAGES=1 -DFAULTS=1 -DCOPIES=5 -DLIMIT=4", pan: exact, run: deep,
			states: 200_000,
		},
		{
			name:  "every message ends: one message, any fault",
			model: "-DMESSAGES=1 -DFAULTS=1 -DCOPIES=5 -DLIMIT=4 -DLIVENESS", pan: liveness,
			run: deep + " -a", states: 200_000,
		},
		{
			name:  "every message ends: two messages, no fault",
			model: "-DFAULTS=0 -DCOPIES=5 -DLIMIT=4 -DLIVENESS", pan: liveness, run: deep + " -a",
			states: 10_000,
		},
	}
	for _, kind := range kinds {
		all = append(all, search{
			name:  kind.name,
			model: fmt.Sprintf("%s -DCOPIES=5 -DONLY=%d", kind.model, kind.number),
			pan:   exact, run: deep, states: 10_000,
		})
	}
	return append(all, search{
		name:  "two messages, any two faults, one minute",
		model: "-DFAULTS=2 -DCOPIES=20 -DLIMIT=9", pan: sampled, run: "-m400 -n -w28 -Q1",
		states: 100_000, long: true, partial: true,
	})
}

// deep is deeper than any of the searches go.
const deep = "-m3000000 -n"
