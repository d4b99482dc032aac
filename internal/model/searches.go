package main

const (
	twoMessages = "-DCOPIES=5 "
	oneMessage  = "-DMESSAGES=1 -DCOPIES=5 "
	// deep is deeper than any of the searches go.
	deep = "-m3000000 -n"
)

// searches are the searches of the model as it is. ONLY is the fault that strikes, as handover.pml
// numbers it: the faults that make no second copy. With two of the other faults the states take
// longer than `make model` may.
var searches = []search{
	safe("two messages, any number of shutdowns", twoMessages+"-DFAULTS=0 -DLIMIT=4", 10_000),
	safe("one message, any fault", oneMessage+"-DFAULTS=1 -DLIMIT=4", 200_000),
	lively("every message ends: one message, any fault", oneMessage+"-DFAULTS=1 -DLIMIT=4", 200_000),
	lively("every message ends: two messages, no fault", twoMessages+"-DFAULTS=0 -DLIMIT=4", 10_000),
	safe("one message, two outages", oneMessage+"-DFAULTS=2 -DLIMIT=7 -DONLY=3", 10_000),
	safe("two messages, one outage", twoMessages+"-DFAULTS=1 -DLIMIT=4 -DONLY=3", 10_000),
	safe("two messages, two queues vanish", twoMessages+"-DFAULTS=2 -DLIMIT=9 -DONLY=4", 10_000),
	safe("two messages, two ways back lost", twoMessages+"-DFAULTS=2 -DLIMIT=9 -DONLY=5", 10_000),
	{
		name:  "two messages, any two faults, one minute",
		model: "-DFAULTS=2 -DCOPIES=20 -DLIMIT=9", pan: sampled, run: "-m400 -n -w28 -Q1",
		states: 100_000, partial: true,
	},
}

func safe(name, model string, states int) search {
	return search{name: name, model: model, pan: exact, run: deep, states: states}
}

func lively(name, model string, states int) search {
	return search{
		name: name, model: model + " -DLIVENESS", pan: liveness, run: deep + " -a", states: states,
	}
}
