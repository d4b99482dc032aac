// Package doctor examines a broker: whether the facts hold that millpond's guarantee rests on. It
// is for a broker whose version or host millpond's own tests do not know.
//
//	report, err := doctor.Examine(ctx, url)
//	for _, c := range report.Checks {
//		fmt.Println(c.Status, c.Name, c.Seen)
//	}
//
// It experiments in scratch queues whose names begin with millpond.doctor., with some dozens of
// messages of a few bytes, and removes the queues at its end, also when its context ends. Every
// scratch queue expires by itself some minutes after a run that was killed, and the scratch
// exchanges go with their queues. Queues of the user are never declared, read or published to. The
// permissions for a plan are found out with requests that the broker cannot fulfil (F31).
package doctor
