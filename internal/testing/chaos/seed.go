package chaos

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// Delays are the delays before the second attempt, the third, and so on. The last one is rare, so
// that its wait queue can be emptied and deleted without stopping everything.
var Delays = []time.Duration{time.Second, 2 * time.Second, time.Second, 4 * time.Second}

// Limit is the number of attempts of a message.
var Limit = len(Delays) + 1

// Outcome is the result of one attempt.
type Outcome string

// The outcomes of an attempt. All but Handled are failures.
const (
	Handled   Outcome = "ok"
	Failed    Outcome = "error"
	Panicked  Outcome = "panic"
	Hung      Outcome = "hang" // for a second or two, then an error
	Permanent Outcome = "permanent"
)

// Fates decides the fate of every message by a seed. Every process gets the same answers.
type Fates uint64

// Failures returns the number of attempts of message n that fail before one succeeds: Limit if none
// succeeds, -1 if it fails permanently at once.
func (f Fates) Failures(n int) int {
	switch roll := f.roll(n, 0) % 100; {
	case roll < 60:
		return 0
	case roll < 88:
		return 1 + int(f.roll(n, -1)%3)
	case roll < 92:
		return Limit - 1
	case roll < 97:
		return Limit
	}
	return -1
}

// Of returns the outcome of an attempt, counted from 1, of message n.
func (f Fates) Of(n, attempt int) Outcome {
	failures := f.Failures(n)
	switch {
	case failures < 0:
		return Permanent
	case attempt > failures && failures < Limit:
		return Handled
	}
	switch roll := f.roll(n, attempt) % 100; {
	case roll < 65:
		return Failed
	case roll < 90:
		return Panicked
	}
	return Hung
}

// Dies reports whether message n ends as a dead letter.
func (f Fates) Dies(n int) bool {
	failures := f.Failures(n)
	return failures < 0 || failures >= Limit
}

// Priority returns the priority of message n: 0 to 9.
func (f Fates) Priority(n int) int { return int(f.roll(n, -2) % 10) }

// roll mixes seed, message and attempt, as SplitMix64 does.
func (f Fates) roll(n, attempt int) uint64 {
	x := uint64(f)
	for _, v := range []int{n, attempt} {
		x += uint64(int64(v)) + 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return x
}

// Kind is a kind of fault.
type Kind string

// The faults. The faults of the broker strike one after the other, and beside them the faults of
// its clients.
const (
	KillNode     Kind = "kill node"     // -9, and started again after a while
	KillMajority Kind = "kill majority" // two nodes at once
	// Minority leaves two nodes gone or frozen for so long that the third stands alone.
	Minority   Kind = "minority"
	FreezeNode Kind = "freeze node"
	// PauseNode freezes a node beyond net_ticktime: the others give it up, and it gives up them.
	PauseNode      Kind = "pause node"
	RestartNode    Kind = "restart node" // stopped in good order
	RaiseAlarm     Kind = "raise alarm"  // of memory
	DiskAlarm      Kind = "disk alarm"
	FillDLQ        Kind = "fill dlq"     // to its limit; it is not drained meanwhile
	DeleteQueue    Kind = "delete queue" // an empty wait queue
	DeleteExchange Kind = "delete exchange"
	DeleteBinding  Kind = "delete binding"

	KillConsumer Kind = "kill consumer" // -9
	StopConsumer Kind = "stop consumer" // in good order
	CutClients   Kind = "cut connections"
	Blackhole    Kind = "blackhole" // of one node's clients
	// DelayConfirms keeps the broker's confirms from the consumers, whose connections live.
	DelayConfirms Kind = "delay confirms"
	// ApplyPolicy sets a policy or an operator policy on all queues, and clears it after a while.
	ApplyPolicy Kind = "apply policy"
)

// Kinds lists all faults.
var Kinds = []Kind{
	KillNode, KillMajority, Minority, FreezeNode, PauseNode, RestartNode, RaiseAlarm, DiskAlarm,
	FillDLQ, DeleteQueue, DeleteExchange, DeleteBinding,
	KillConsumer, StopConsumer, CutClients, Blackhole, DelayConfirms, ApplyPolicy,
}

// Fault is one of a schedule.
type Fault struct {
	At   time.Duration // since the faults began; later if the fault before takes longer
	Kind Kind
	Pick int           // selects the node, consumer, exchange or binding, modulo their number
	Hold time.Duration // its length; 0 for some kinds
	// Aim kills the leader of a source queue, freezes the nodes of a minority instead of killing them,
	// delays confirms for the consumers of the busiest node instead of all, and makes a policy an
	// operator policy.
	Aim bool
}

func (f Fault) String() string {
	return fmt.Sprintf("%s at %s", f.Kind, f.At.Round(time.Millisecond))
}

// lane has faults that strike one after the other. They are dealt from a shuffled deck, so that
// each kind has its share in a run of a few minutes.
type lane struct {
	deck             map[Kind]int
	minGap, maxGap   time.Duration
	minHold, maxHold time.Duration
}

func brokerLane(nodes int, exchanges bool) lane {
	deck := map[Kind]int{
		KillNode: 5, FreezeNode: 2, RestartNode: 1, RaiseAlarm: 1, DiskAlarm: 1, FillDLQ: 1,
		DeleteQueue: 1,
	}
	if nodes > 2 {
		deck[KillMajority], deck[Minority], deck[PauseNode] = 1, 1, 1
	}
	if exchanges {
		deck[DeleteExchange], deck[DeleteBinding] = 1, 1
	}
	return lane{deck, 2 * time.Second, 7 * time.Second, time.Second, 12 * time.Second}
}

// only leaves the given kinds in the deck, or all if none are given.
func (l lane) only(kinds []Kind) lane {
	if len(kinds) > 0 {
		maps.DeleteFunc(l.deck, func(k Kind, _ int) bool { return !slices.Contains(kinds, k) })
	}
	return l
}

// longHolds are the lengths of faults that last longer than the others of their lane.
var longHolds = map[Kind]struct{ least, most time.Duration }{
	// Erlang gives a silent node up after 45 to 75 s (net_ticktime is 60), and the cluster is then
	// partitioned, which needs an operator. So frozen nodes go on before that.
	Minority:      {30 * time.Second, 40 * time.Second},
	DelayConfirms: {10 * time.Second, 40 * time.Second},
	// The pause sets net_ticktime to eight seconds for its time, so a node is given up after ten.
	PauseNode: {20 * time.Second, 35 * time.Second},
}

// hold returns the length of a fault from the one drawn between the bounds of its lane.
func (l lane) hold(f Fault) time.Duration {
	switch f.Kind {
	case DeleteQueue, DeleteExchange, DeleteBinding, KillConsumer, StopConsumer, CutClients:
		return 0
	}
	long, ok := longHolds[f.Kind]
	if !ok {
		return f.Hold
	}
	if f.Kind == Minority && !f.Aim {
		long.most = time.Minute
	}
	drawn := float64(f.Hold-l.minHold) / float64(l.maxHold-l.minHold)
	return long.least + time.Duration(drawn*float64(long.most-long.least))
}

func clientLane() lane {
	deck := map[Kind]int{
		KillConsumer: 5, StopConsumer: 1, CutClients: 2, Blackhole: 1, DelayConfirms: 1, ApplyPolicy: 2,
	}
	return lane{deck, 3 * time.Second, 9 * time.Second, 2 * time.Second, 12 * time.Second}
}

// deal returns the faults of a lane for d.
func (l lane) deal(rng *rand.Rand, d time.Duration) []Fault {
	if len(l.deck) == 0 {
		return nil
	}
	var faults []Fault
	var deck []Kind
	between := func(low, high time.Duration) time.Duration {
		return low + time.Duration(rng.Int64N(int64(high-low)))
	}
	for at := between(l.minGap, l.maxGap); at < d; at += between(l.minGap, l.maxGap) {
		if len(deck) == 0 {
			for kind, times := range l.deck {
				deck = append(deck, slices.Repeat([]Kind{kind}, times)...)
			}
			slices.Sort(deck) // a map has no order
			rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		f := Fault{
			At: at, Kind: deck[0], Pick: rng.IntN(1 << 16), Hold: between(l.minHold, l.maxHold),
			Aim: rng.IntN(2) == 0,
		}
		deck = deck[1:]
		f.Hold = l.hold(f)
		faults = append(faults, f)
		at += f.Hold
	}
	return faults
}

// Schedule is all that breaks in a run, in two lanes that go on beside each other.
type Schedule struct{ Broker, Clients []Fault }

// NewSchedule decides on the faults of a run by its seed. Without kinds, faults of all kinds
// strike.
func NewSchedule(seed uint64, d time.Duration, nodes int, exchanges bool, kinds ...Kind) Schedule {
	return Schedule{
		Broker:  brokerLane(nodes, exchanges).only(kinds).deal(rand.New(rand.NewPCG(seed, 1)), d),
		Clients: clientLane().only(kinds).deal(rand.New(rand.NewPCG(seed, 2)), d),
	}
}
