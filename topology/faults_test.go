package topology_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// At every place between two frames of a failed message's way, its connection is
// closed, reset or frozen, and heals; and a peer answers its hand-over in every
// odd way. Nothing is acked before its copy is confirmed, nothing is lost, no
// attempt burned, and a second copy is there only where the outcome of the first
// was unknown.
func TestFaultsAtEveryFrame(t *testing.T) {
	t.Parallel()
	// Its own broker, for a busy one may hold messages for three minutes (F23).
	trials := newTrials(testbroker.Private(t, rig.QuickDeadLettering).URL())
	faults := oddFaults(trials)
	faults = append(faults, frameFaults(t, trials)...)
	require.Greater(t, len(faults), 200)

	var mu sync.Mutex
	rows := make([]string, len(faults))
	lost, duplicates, ended := 0, 0, 0
	trials.all(len(faults), func(i int, queue string) {
		f := faults[i]
		row := fmt.Sprintf("%-32s %-34s", f.leg.name, f.name)
		rows[i] = row + " did not end"
		t.Run(f.leg.name+" "+f.name, func(t *testing.T) {
			done := f.run(t, queue)
			mu.Lock()
			lost += done.lost()
			duplicates += done.duplicates()
			ended++
			rows[i] = fmt.Sprintf("%s lost %d, duplicates %d (%s)", row, done.lost(), done.duplicates(), f.allowed())
			mu.Unlock()
			require.Zero(t, done.lost(), "lost")
			require.GreaterOrEqual(t, done.duplicates(), f.atLeast, "duplicates")
			require.LessOrEqual(t, done.duplicates(), f.atMost+done.alsoUnknown(f.leg), "duplicates")
		})
	})
	slices.Sort(rows)
	t.Logf("every fault point:\n%s", strings.Join(rows, "\n"))
	t.Logf("%d fault points: lost %d, duplicates %d, without an end %d", len(faults), lost, duplicates, len(faults)-ended)
}

// fault is one thing that goes wrong on a leg.
type fault struct {
	leg  leg
	name string
	copies
	run func(t *testing.T, queue string) ending
}

// frameFaults are all places between two frames. The frames are recorded first,
// from messages to which nothing happens.
func frameFaults(t *testing.T, trials *trials) []fault {
	t.Helper()
	recorded := make([][]testbroker.Seen, len(legs))
	trials.all(len(legs), func(i int, queue string) {
		t.Run(legs[i].name, func(t *testing.T) {
			done := trials.run(t, queue, legs[i], nil)
			require.LessOrEqual(t, done.duplicates(), done.unanswered, "duplicates without a fault")
			recorded[i] = done.frames
			t.Logf("%v", done.frames)
		})
	})
	require.False(t, t.Failed(), "nothing to inject faults into")
	var frozen, quick []fault
	for i, leg := range legs {
		for _, p := range leg.points(recorded[i]) {
			f := fault{leg, p.String(), p.copies, func(t *testing.T, queue string) ending { return trials.run(t, queue, leg, &p) }}
			if p.kind == testbroker.Frozen {
				frozen = append(frozen, f)
			} else {
				quick = append(quick, f)
			}
		}
	}
	return append(frozen, quick...) // what takes long begins first
}

// oddFaults are answers of a peer to a hand-over that never mean success.
func oddFaults(trials *trials) []fault {
	returned := func(p *peer.Publish) {
		p.Return()
		p.Ack(p.Tag, false)
	}
	var faults []fault
	for name, odd := range map[string]func(*peer.Publish){
		"nack":                       func(p *peer.Publish) { p.Nack(p.Tag, false) },
		"nack with multiple":         func(p *peer.Publish) { p.Nack(p.Tag, true) },
		"return, then ack":           returned,
		"return and nothing else":    func(p *peer.Publish) { p.Return() },
		"ack of a tag never sent":    func(p *peer.Publish) { p.Ack(p.Tag+98, false) },
		"ack of tag 0 with multiple": func(p *peer.Publish) { p.Ack(0, true) },
		"silence":                    func(*peer.Publish) {},
		"blocked, and no answer":     func(p *peer.Publish) { p.Blocked(true) },
		"channel.close":              func(p *peer.Publish) { p.CloseChannel(406, "PRECONDITION_FAILED") },
		"connection.close":           func(p *peer.Publish) { p.CloseConnection(541, "INTERNAL_ERROR") },
		"half a confirm":             func(p *peer.Publish) { p.Half() },
		"a confirm without its end":  func(p *peer.Publish) { p.Garbage() },
		"a reset":                    func(p *peer.Publish) { p.Cut(true) },
	} {
		for _, leg := range legs[:2] {
			faults = append(faults, fault{leg: leg, name: "peer: " + name, run: func(t *testing.T, queue string) ending {
				return trials.runOdd(t, queue, leg, odd)
			}})
		}
	}
	return faults
}
