// Package random runs programs that are drawn at random against a real broker, and checks the
// promises of the library after each:
//
//	draw ──► Program: policy, strategy, outcomes of handlers, faults, operator's commands
//	              │ Run
//	              ▼
//	broker ◄── proxy ◄── service ──► calls, dead letters ──► judge
//
// A program that fails is shrunk to the shortest program that still fails, and printed as a test to
// paste. `make test` runs a few programs, `make random` as many as fit into an hour.
package random
