// Package operate puts dead letters and waiting messages into the hands of
// whoever is on call: list them, move them back, throw them away, keep them in a
// file.
//
//	orders.dlq ─► Dead, Group            look
//	           ─► Replay ─► orders       each confirmed there before it leaves
//	           ─► Export ─► a file ─► Import
//	           ─► Discard
//
// Everything works on the Plan of one queue, over a topology.Client:
//
//	plan, err := topology.PlanFor(strategy, "orders")
//	for letter, err := range operate.Dead(ctx, client, plan, operate.Filter{Reason: "permanent"}) {
//		fmt.Println(letter.ID, letter.DeadAt, letter.Error)
//	}
//	done, err := operate.Replay(ctx, client, plan, operate.Replaying{
//		Filter: operate.Filter{Error: "connection refused"}, Rate: 50,
//	})
//
// # How a queue is read
//
// AMQP has no way to look at a message: to see the second one, the first must be
// taken. So a call takes the messages one after the other, in pages, without
// acking them, and gives all of them back at its end, at their places. This holds
// for all of this package:
//
//   - What is in the queue at the beginning is looked at, and no more. Memory is
//     bounded by a page, whatever the length of the queue.
//   - The order is kept, with one exception: on a quorum queue that was looked at
//     before, a call that ends early leaves what it has seen behind the rest, if
//     that is more than 10 000 messages.
//   - Until the end nobody else gets what was taken. Afterwards it carries the
//     redelivered flag. A process that is killed gives it back as well: the broker
//     sees to that, but may mix up the order.
//   - Each look counts against the delivery limit of a quorum queue, from RabbitMQ 4.3
//     on only one that is cut off. So a quorum queue is looked at only where its
//     argument and all policies put the limit out of reach, which takes
//     topology.WithManagement or topology.WithoutPolicyCheck; else the error is
//     topology.ErrUnsafePeek, see Client.CheckPeek. Classic queues have no limit.
//   - Messages that were given back are counted. Where they are not back within 20 s,
//     and no consumer may have taken them, the error says how many are missing
//     (Client.CheckGivenBack). Messages that wait are not counted, because they leave by
//     themselves; a loop over Dead that is left early does not see the error.
//   - A message of which the headers do not fit into a frame ends the connection of
//     whoever reads it (F16, F25): AMQP cannot pass over it, and what is behind it
//     cannot be reached. That is ErrUnreadable.
//   - Nothing is held for longer than 15 minutes, for the broker closes a channel
//     after 30 (F16). Replay and Discard then give back what they hold and begin
//     again, with what is left of those that were there; Dead ends with ErrTooSlow.
package operate
