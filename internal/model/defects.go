package main

// defect is a mistake that a macro of handover.pml plants.
type defect struct {
	search
	macro string
	what  string
}

const (
	none  = "-DFAULTS=0 -DMESSAGES=1"
	two   = "-DFAULTS=0 -DMESSAGES=2"
	fault = "-DFAULTS=1 -DMESSAGES=1"
	both  = "-DFAULTS=1 -DMESSAGES=2"
	twice = "-DFAULTS=2 -DMESSAGES=1"
	// outages are the faults with which LIMIT is as small as two messages and one outage allow.
	outages = both + " -DCOPIES=5 -DONLY=3"
)

func unsafe(macro, bounds, what string) defect {
	return defect{search{
		model: bounds + " -DLIMIT=4 -D" + macro, pan: shortest, run: "-m1000000 -n",
	}, macro, what}
}

func stuck(macro, bounds, run, what string) defect {
	return defect{search{
		model: bounds + " -DLIMIT=4 -DLIVENESS -D" + macro, pan: "-O0 -DCOLLAPSE",
		run: "-m1000000 -n " + run,
	}, macro, what}
}

// defects are mistakes that were made, here or elsewhere, or nearly.
var defects = []defect{
	unsafe("MUT_ACK_BEFORE_PUBLISH", none, "the ack is written before the publish"),
	unsafe("MUT_ACK_AT_WRITE", none, "the delivery is acked when its place is freed: at the write"),
	unsafe("MUT_SNOOZE_ACKS_EARLY", none, "a snooze is acked before its confirm"),
	unsafe("MUT_CLOSE_IS_CONFIRM", fault, "the end of the channel is read as a confirm"),
	unsafe("MUT_CONFIRM_OF_ANOTHER", two, "a confirm is taken for another publish"),
	unsafe("MUT_RETURN_IGNORED", fault, "a return is ignored, because a confirm follows"),
	unsafe("MUT_SECOND_COPY", none, "a second copy is published while the first outcome is open"),
	unsafe("MUT_HOLD_REQUEUES", fault, "the hold ends with a requeue, and consuming goes on"),
	unsafe("MUT_SHUTDOWN_COUNTS", none, "each shutdown gives back, which counts as a crash"),
	unsafe("MUT_SHUTDOWN_FAILS", none, "a handler that the shutdown interrupts counts as a failure"),
	unsafe("MUT_MULTIPLE_OVER_OPEN", two, "an ack of a run covers a delivery that is open"),
	unsafe("MUT_NACK_AFTER_CONFIRM", none, "a delivery goes back although its copy is confirmed"),
	unsafe("MUT_AT_MOST_ONCE", fault, "the wait queue dead-letters at most once"),
	unsafe("MUT_STRANDED_DROPPED", fault, "the return exchange has no alternate exchange"),
	unsafe("MUT_GUARD_DROPS", twice, "the crash guard drops the culprit without a dead letter"),
	unsafe("MUT_LATE_ACK", both, "an ack after the consumer timeout settles a new delivery"),
	unsafe("MUT_HOLD_IS_CRASH", fault, "the guard takes the end of a hold for a crash"),
	unsafe("MUT_LATE_CONFIRM_ENDS", outages, "a late confirm ends an outage"),
	unsafe("MUT_NO_LAST_ATTEMPT", none, "the last failure is retried"),
	stuck("MUT_NEVER_RESUMES", fault, "", "nothing is consumed after an outage"),
	stuck("MUT_LOST_STAYS", fault, "", "a publish whose confirm is lost stays open"),
	stuck("MUT_LAST_TRY_ALWAYS", none, "-a", "a dead letter is snoozed again and again"),
}
