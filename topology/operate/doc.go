// Package operate looks at dead letters, waiting messages and stranded messages and acts on them:
// it lists them, moves them back, throws them away and keeps them in a file. It also counts and
// checks the queues of a plan.
//
//	orders.dlq ─► Dead, GroupByError     look, at letters or at their causes
//	           ─► Replay ─► orders       each confirmed there before it leaves
//	           ─► Export ─► a file ─► Import
//	           ─► Discard
//	           ─► ReplayKey              the letters of a key, in their order
//	orders.line ─► Order, ReleaseKey     keys that wait, and blocked keys
//	millpond.stranded ─► Stranded, ReturnStranded, DiscardStranded
//
// An Operator needs the broker's URL. With the management API its View is everything that millpond
// has in the virtual host, with the Plan of each queue. All else works on the Plan of one queue:
//
//	operator, err := operate.Open(ctx, url)
//	plan, err := topology.PlanFor(topology.PerQueue{}, "orders", policy)
//	permanent := operate.Filter{Reason: header.ReasonPermanent}
//	for letter, err := range operator.Dead(ctx, plan, permanent, 0) {
//		fmt.Println(letter.ID, letter.DeadAt, letter.Error)
//	}
//	done, err := operator.Replay(ctx, plan, operate.MoveOptions{
//		Filter: operate.Filter{Error: "connection refused"}, Rate: 50,
//	})
//
// # How a queue is read
//
// AMQP has no way to look at a message: to see the second one, the first must be taken. So a call
// takes the messages one after the other, in pages, without acking them, and gives all of them back
// at its end, at their places. These rules hold for every call that reads messages:
//
//   - It looks at the messages that are in the queue at the beginning, and no more. Memory is
//     bounded by a page for a queue of any length.
//   - The order is kept, with one exception: on a quorum queue that was looked at before, a call
//     that ends early leaves the messages that it has seen behind the rest, if the rest has more
//     than 10 000 messages.
//   - No other client gets the taken messages until the end. Afterwards they carry the redelivered
//     flag. If the process is killed, the broker gives them back, but may mix up the order.
//   - Each look counts against the delivery limit of a quorum queue, from RabbitMQ 4.3 on only a
//     look that is cut off (F34). At the limit the broker deletes the message. So a quorum queue is
//     read only where its argument and all policies put the limit out of reach, because the
//     smallest number counts (F30). Queues that a strategy declares have such an argument (F21).
//     Only the management API shows policies: use WithManagement, or WithoutPolicyCheck. Otherwise
//     the error is ErrUnsafePeek. Classic queues have no limit and need neither.
//   - Messages that were given back are counted. Where they are not back within 20 s, and no
//     consumer may have taken them, the error says how many are missing, and why as far as it is
//     known. Messages that wait are not counted, because they leave by themselves.
//   - A message whose headers do not fit into a frame ends the connection that reads it (F16, F25).
//     AMQP cannot pass over it, and the messages behind it cannot be reached. That is
//     ErrUnreadable.
//   - Nothing is held for longer than 15 minutes, because the broker closes a channel after 30
//     (F16). Replay and Discard then give back the messages that they hold and begin again with the
//     rest; Dead and Stranded end with ErrTooSlow.
package operate
