// Package chaos checks that no message is lost while everything around it breaks, in the style of
// Jepsen:
//
//	producers ── numbered, confirmed ──► cluster of three nodes ──► consumers, processes of their own
//	    │                                   ▲   ▲                        │ a line for each attempt, before it is acked
//	    ▼                                   │   └─ nemesis ─► kill, cut  ▼
//	what was confirmed ──► checker ◄── dead letters              logs in files
//
// A run is decided by its seed: what each message's attempts come to ([Fates]), and which faults
// strike when ([Schedule]). The consumers use the library as any service would. After the faults
// everything is healed, and every confirmed message must have been handled or be a dead letter, and
// no more often than the faults explain ([Check]).
//
// Programs: storm (`make chaos`) and soak (`make soak`).
package chaos
