// Package chaos checks that no message is lost while everything around it breaks, in the style of
// Jepsen:
//
//	producers ── numbered, confirmed ──► cluster of three ──► consumers, each in its process
//	    │                                   ▲   ▲                  │ a line for each attempt
//	    ▼                                   │   └─ nemesis         ▼ before its ack
//	confirmed messages ──► checker ◄── dead letters          logs in files
//
// The seed of a run decides the outcome of each attempt ([Fates]), and which faults strike when
// ([Schedule]). The consumers use the library like any service. After the faults everything is
// healed. Then every confirmed message must have been handled or be a dead letter, and no more
// often than the faults explain ([Check]).
//
// Programs: storm (`make chaos`) and soak (`make soak`).
package chaos
