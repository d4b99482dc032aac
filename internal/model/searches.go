package main

import "fmt"

// kinds are the faults, as handover.pml numbers them.
var kinds = []string{
	"processes killed", "deliveries taken back, processes frozen", "publishing channels lost",
	"outages", "queues vanished", "ways back lost", "confirms lost or too late",
	"expired messages sent again",
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
			name:  "every message ends: two messages, no fault",
			model: "-DFAULTS=0 -DCOPIES=5 -DLIMIT=4 -DLIVENESS", pan: liveness, run: deep + " -a",
			states: 10_000,
		},
	}
	for kind, name := range kinds {
		all = append(all, search{
			name:  "one message, two faults: " + name,
			model: fmt.Sprintf("-DMESSAGES=1 -DFAULTS=2 -DCOPIES=7 -DLIMIT=7 -DONLY=%d", kind),
			pan:   exact, run: deep, states: 500, long: true,
		})
	}
	return append(all, search{
		name:  "two messages, two faults of each kind, for a minute",
		model: "-DEACH=2 -DCOPIES=12 -DLIMIT=15", pan: sampled, run: "-m400 -n -w28 -Q1",
		states: 1_000_000, long: true, partial: true,
	})
}

// deep is deeper than any of the searches go.
const deep = "-m3000000 -n"
