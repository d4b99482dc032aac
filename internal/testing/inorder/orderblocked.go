package main

import "fmt"

// This file judges the keys that a dead letter blocks.

// passes compares a begin with the dead letters of its key. A message that was over before may
// begin again: its ack was lost.
func (j *judge) passes(k *keyState, e event) {
	if k.over[e.msg.n] {
		return
	}
	for state, letters := range map[string]map[int]bool{
		"blocked": k.letters, "was replayed and not over": k.replays,
	} {
		for n := range letters {
			if e.msg.n > n {
				j.report.Passed = append(j.report.Passed, fmt.Sprintf(
					"%s: begun by %s while the dead letter of number %d %s", e.msg, e.instance, n, state))
			}
		}
	}
}

// gaveUp notes a dead letter that blocks its key. An instance that has lost its connection may not
// have written it: then the message comes again, unless it was over before.
func (j *judge) gaveUp(k *keyState, h *handling) {
	if n := h.msg.n; j.block && (!k.over[n] || !h.lostTouch) {
		k.letters[n] = true
		j.report.Blocked++
	}
}

// decide takes a decision of the operator. One about a letter that was decided before repeats it.
func (j *judge) decide(e event) {
	k, n := j.key(e.msg.key), e.msg.n
	k.freed = e.at
	if e.outcome == released {
		delete(k.replays, n)
	}
	if !k.letters[n] {
		return
	}
	delete(k.letters, n)
	if e.outcome == released {
		j.report.Released++
		return
	}
	k.replays[n] = true
	j.report.Replayed++
}

// undecided returns how many dead letters block their keys, or were replayed and are not over.
func (j *judge) undecided() (count int) {
	for _, k := range j.keys {
		count += len(k.letters) + len(k.replays)
	}
	return count
}
