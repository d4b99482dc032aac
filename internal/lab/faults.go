package main

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// faultKind is a kind of fault.
type faultKind string

const (
	killNode faultKind = "kill node" // -9, and started again after a while
	// minority leaves two nodes gone or frozen for so long that the third stands alone.
	minority   faultKind = "minority"
	freezeNode faultKind = "freeze node"
	// pauseNode freezes a node beyond net_ticktime: the others give it up, and it gives up them.
	pauseNode   faultKind = "pause node"
	restartNode faultKind = "restart node" // stopped in good order
	raiseAlarm  faultKind = "raise alarm"  // of memory
	applyPolicy faultKind = "apply policy" // to all queues, cleared after a while

	killInstance    faultKind = "kill instance" // -9
	stopInstance    faultKind = "stop instance" // in good order
	freezeInstance  faultKind = "freeze instance"
	cutInstance     faultKind = "cut instance"     // its connections
	silenceInstance faultKind = "silence instance" // its connections live, and no byte passes
	cutAll          faultKind = "cut all"          // connections
	silenceNode     faultKind = "silence node"     // for all of its clients
	// delayConfirms keeps the broker's confirms from the instances, whose connections live.
	delayConfirms faultKind = "delay confirms"
	// putOut puts the downstream service out of order.
	putOut faultKind = "downstream out"
)

// ofNodes are the faults that end or halt nodes.
var ofNodes = []faultKind{killNode, minority, freezeNode, pauseNode, restartNode}

// ofInstances are the faults with an instance as their target.
var ofInstances = []faultKind{
	killInstance, stopInstance, freezeInstance, cutInstance, silenceInstance,
}

// fault is one of a schedule.
type fault struct {
	At   time.Duration // since the faults began; later if the fault before takes longer
	Kind faultKind
	Pick int           // selects the node or instance, modulo their number
	Hold time.Duration // its length; 0 for some kinds
	// Aim kills the leader of a source queue, freezes the nodes of a minority instead of killing
	// them, delays confirms for the clients of one node instead of all, makes a policy an operator
	// policy, and strikes the instance that began a handling last.
	Aim bool
}

// lane has faults that strike one after the other. They are dealt from a shuffled deck, so that
// each kind has its share in a run of a few minutes.
type lane struct {
	deck             map[faultKind]int
	minGap, maxGap   time.Duration
	minHold, maxHold time.Duration
	aim              bool // each fault
}

// holds are the lengths of faults that do not last as long as the others of their lane.
var holds = map[faultKind]struct{ least, most time.Duration }{
	killInstance: {}, stopInstance: {}, cutInstance: {}, cutAll: {},
	// Erlang gives a silent node up after 45 to 75 s (net_ticktime is 60), and the cluster is then
	// partitioned, which needs an operator. So frozen nodes go on before that.
	minority:      {30 * time.Second, 40 * time.Second},
	delayConfirms: {10 * time.Second, 40 * time.Second},
	// The pause sets net_ticktime to eight seconds for its time, so a node is given up after ten.
	pauseNode: {20 * time.Second, 35 * time.Second},
}

// deal returns the faults of a lane for d.
func (l lane) deal(rng *rand.Rand, d time.Duration) (faults []fault) {
	var deck []faultKind
	between := func(low, high time.Duration) time.Duration {
		return low + time.Duration(rng.Int64N(int64(high-low)+1))
	}
	for at := between(l.minGap, l.maxGap); at < d && len(l.deck) > 0; at += between(
		l.minGap, l.maxGap) {
		if len(deck) == 0 {
			for _, kind := range slices.Sorted(maps.Keys(l.deck)) { // a map has no order
				deck = append(deck, slices.Repeat([]faultKind{kind}, l.deck[kind])...)
			}
			rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		f := fault{
			At: at, Kind: deck[0], Pick: rng.IntN(1 << 16), Hold: between(l.minHold, l.maxHold),
			Aim: rng.IntN(2) == 0 || l.aim,
		}
		deck = deck[1:]
		if own, ok := holds[f.Kind]; ok {
			f.Hold = between(own.least, own.most)
		}
		faults = append(faults, f)
		at += f.Hold
	}
	return faults
}

// schedule is all that breaks in a run, in lanes that go on beside each other.
type schedule [][]fault

// newSchedule decides on the faults of a run by its seed. Without kinds, faults of all kinds of the
// lanes strike.
func newSchedule(seed uint64, d time.Duration, lanes []lane, kinds []faultKind) (s schedule) {
	for i, l := range lanes {
		if len(kinds) > 0 {
			l.deck = maps.Clone(l.deck)
			maps.DeleteFunc(l.deck, func(k faultKind, _ int) bool { return !slices.Contains(kinds, k) })
		}
		s = append(s, l.deal(rand.New(rand.NewPCG(seed, uint64(i+1))), d))
	}
	return s
}
