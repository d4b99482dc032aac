package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// settings describe a run. Runs with the same ones have the same messages, fates and faults; when
// these meet depends on the machine's load.
type settings struct {
	Seed   uint64
	Length time.Duration // of the faults

	Nodes     int
	Memory    bool          // keeps the broker's data in memory
	Timer     time.Duration // the broker's dead-letter timer; 0 leaves it as shipped
	Queues    int           // of other services on the cluster
	Instances int

	Strategy              string
	Block                 bool // a dead letter blocks its key until the operator decides
	Concurrency, Prefetch int  // of each instance, for a line
	Delays                []time.Duration
	Heartbeat             time.Duration // of connections
	Brake                 bool          // in an outage

	Keys, Rate int // messages a second
	Fates      fates

	// Bound is how long a ready message may wait while the broker works and a handler is free.
	Bound   time.Duration
	Samples time.Duration // is between two samples of figures; 0: none
	Once    bool          // ends the run at its first message out of order
	Verbose bool
	Only    []faultKind // the faults that strike; all if empty
	// Schedule replaces the schedule of the seed.
	Schedule schedule  `json:"-"`
	Out      io.Writer `json:"-"` // gets the progress
}

const (
	// deadLetterTimer is the time after which RabbitMQ sends a message again that an at-least-once
	// queue could not dead-letter (F5).
	deadLetterTimer = 180 * time.Second
	confirmTimeout  = 5 * time.Second // of the instances
	// wal is the size at which a node rolls the log of its quorum queues over, which is in memory.
	// With the default of 512 MiB ten minutes are too short to see whether the memory grows.
	wal = 32 * mib
)

// run is a run of a scenario with a broker.
type run struct {
	settings
	*scenario
	started time.Time
	dir     string
	cluster *testbroker.Cluster
	lines   lines
	log     *eventLog
	nemesis *nemesis
	fleet   *fleet
	witness *witness

	producers []string                // the URLs of the proxies in front of them
	enough    context.CancelCauseFunc // ends the run
	out       sync.Mutex

	mu      sync.Mutex // guards what follows
	history *history
	judged  time.Time // with Once
	broken  error     // of reading the log
}

var errEnough = errors.New("the judge has seen enough")

// do starts a cluster, lets everything break, heals it, waits and judges. The findings are in the
// report. An error means that the run could not be done.
func (sc *scenario) do(ctx context.Context, s settings) (rep *report, err error) {
	r := &run{settings: s, scenario: sc, started: time.Now(), history: newHistory(s, nil)}
	if r.lines, err = newLines(s); err != nil {
		return nil, err
	}
	if r.dir, err = os.MkdirTemp("", "millpond-lab-"); err != nil {
		return nil, err
	}
	defer func() {
		if rep != nil {
			rep.kept = r.dir
		}
		switch {
		case err != nil:
			err = fmt.Errorf("%w; the log is in %s", err, r.dir)
		case len(rep.problems) == 0:
			err = os.RemoveAll(r.dir)
		}
	}()
	if r.cluster, err = testbroker.StartCluster(ctx, s.Nodes, s.nodeOptions()...); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.cluster.Close()) }()
	r.say("%s: RabbitMQ %s, seed %d, %d nodes, %d instances, %d messages a second, %s", sc.name,
		r.cluster.Node(0).Version(), s.Seed, s.Nodes, s.Instances, s.Rate, s.Length)
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.enough = cancel
	rules := sc.rules
	if err = r.work(work); errors.Is(context.Cause(work), errEnough) {
		err, rules = nil, sc.early
	}
	if err != nil {
		return nil, err
	}
	rep = judge(r.history, rules)
	if len(rep.problems) > 0 {
		r.explain(rep)
	}
	return rep, nil
}

func (s settings) nodeOptions() (options []testbroker.NodeOption) {
	terms := "{quorum_tick_interval, 1000}" // figures of queues are as old as a tick
	if s.Timer > 0 {
		terms += fmt.Sprintf(", {dead_letter_worker_publisher_confirm_timeout, %d}",
			s.Timer.Milliseconds())
	}
	if s.Memory {
		options = append(options, testbroker.InMemory())
	}
	return append(options, testbroker.WithAdvancedConfig("[{rabbit, ["+terms+"]}]."),
		testbroker.WithConfig(fmt.Sprint("raft.wal_max_size_bytes = ", wal)))
}

// work runs the producers and the fleet from their start to their end.
func (r *run) work(ctx context.Context) (err error) {
	if r.log, err = openLog(filepath.Join(r.dir, eventsFile)); err != nil {
		return err
	}
	defer r.log.close()
	places, err := r.connect()
	if err != nil {
		return err
	}
	defer r.nemesis.which(everyProxy, (*testbroker.Proxy).Close)
	if err := errors.Join(r.nemesis.declare(ctx), r.nemesis.crowd(ctx)); err != nil {
		return fmt.Errorf("declare the queues: %w", err)
	}
	r.fleet = r.startFleet(places)
	closing := sync.OnceFunc(r.fleet.close)
	defer closing()

	reads, stopReads := context.WithCancel(ctx)
	publishes, stopPublishes := context.WithCancel(ctx)
	var wg, publishing sync.WaitGroup
	defer wg.Wait()
	defer publishing.Wait()
	defer stopReads()
	defer stopPublishes()
	wg.Go(func() {
		for rest(reads, 50*time.Millisecond) && r.take() == nil {
		}
	})
	for _, l := range r.lines {
		if !r.Block { // the operator decides about the letters in their queue
			wg.Go(func() { r.readLetters(reads, l.dead()) })
		}
	}
	publishing.Go(func() { r.produce(publishes) })
	if err := r.await(ctx, "the first message to be handled", time.Minute,
		func() bool { return len(r.history.over) > 0 }); err != nil {
		return err
	}
	wg.Go(func() { r.watch(reads) })
	if r.Samples > 0 {
		wg.Go(func() { r.sample(reads) })
	}
	faults := r.Schedule
	if faults == nil && r.schedule != nil {
		faults = r.schedule(r.settings)
	}
	r.nemesis.follow(ctx, faults)
	if err := r.nemesis.heal(ctx); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	r.say("healed")
	rest(ctx, min(3*time.Second, r.Length))
	stopPublishes()
	publishing.Wait()
	if err := r.calm(ctx); err != nil {
		return err
	}
	stopReads()
	wg.Wait()
	closing()
	return errors.Join(r.inspect(ctx), r.take())
}

// connect puts proxies between the nodes and their clients, makes all parts of the run, and returns
// the instances of the fleet.
func (r *run) connect() (places []instance, err error) {
	r.nemesis = &nemesis{run: r, calm: time.Now()}
	r.witness = newWitness(confirmTimeout, r.note)
	size := r.Instances
	if r.Block {
		size++
	}
	for place := ofProducers; place < size; place++ {
		var urls []string
		for node, url := range r.cluster.URLs() {
			p, err := testbroker.OpenProxy(url)
			if err != nil {
				return nil, err
			}
			r.nemesis.proxies = append(r.nemesis.proxies, proxied{p, node, place})
			if place >= 0 && place < r.Instances {
				r.witness.watch(p)
			}
			urls = append(urls, p.URL())
		}
		if place == ofProducers {
			r.producers = urls
			continue
		}
		first := place % len(urls)
		places = append(places, instance{
			settings: r.settings, URLs: slices.Concat(urls[first:], urls[:first]), Dir: r.dir,
			Operator: place == r.Instances,
		})
	}
	return places, nil
}

// active returns the instance that began a handling last.
func (r *run) active() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.history.active
}

// note appends an event to the log.
func (r *run) note(e event) {
	if err := r.log.append(e); err != nil {
		r.say("%v", err)
	}
}

// take takes in the new events of the log.
func (r *run) take() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	events, err := r.log.next()
	for _, e := range events {
		r.history.add(e)
	}
	r.broken = errors.Join(r.broken, err)
	if r.Once && time.Since(r.judged) > 2*time.Second {
		r.judged = time.Now()
		if rep := judge(r.history, r.early); len(rep.problems) > 0 {
			r.enough(errEnough)
		}
	}
	return r.broken
}

// await waits until cond is true. cond is called with the lock held.
func (r *run) await(
	ctx context.Context, awaited string, limit time.Duration, cond func() bool,
) error {
	for deadline := time.Now().Add(limit); ; {
		r.mu.Lock()
		met, err := cond(), r.broken
		r.mu.Unlock()
		switch {
		case met || err != nil:
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("waited %s for %s", limit, awaited)
		case !rest(ctx, 50*time.Millisecond):
			return ctx.Err()
		}
	}
}

// calm returns when no message is missing and no letter without a decision, or when nothing has
// moved for four dead-letter timers: RabbitMQ 4.0.5 has held messages for more than two. Then
// duplicates may follow for a while.
func (r *run) calm(ctx context.Context) error {
	// A busy machine is slower than a short timer.
	patience := max(4*cmp.Or(r.Timer, deadLetterTimer), 10*time.Second)
	began, missing := time.Now(), 0
	err := r.await(ctx, "calm", 24*time.Hour, func() bool {
		missing = r.history.missing()
		if missing == 0 && r.Block {
			missing = r.history.order().undecided()
		}
		return missing == 0 || time.Since(r.history.moved) > patience
	})
	if err != nil {
		return err
	}
	r.say("%d messages are missing %s after the last confirm", missing,
		time.Since(began).Round(time.Millisecond))
	most := slices.Max(r.Delays) + time.Second
	_ = r.await(ctx, "duplicates", 4*most,
		func() bool { return time.Since(r.history.moved) > most })
	return ctx.Err()
}

func (r *run) say(format string, args ...any) {
	_, _ = r.Write(fmt.Appendf(nil, "%7.1fs  %s\n", time.Since(r.started).Seconds(),
		fmt.Sprintf(format, args...)))
}

// Write writes to the output of many goroutines and processes.
func (r *run) Write(p []byte) (int, error) {
	r.out.Lock()
	defer r.out.Unlock()
	return r.Out.Write(p)
}

// explain prints the events of the first messages with a problem, and what the instances lost.
func (r *run) explain(rep *report) {
	suspects := rep.suspects[:min(5, len(rep.suspects))]
	for _, e := range r.history.events {
		if slices.Contains(suspects, e.id) || len(suspects) > 0 && (e.Kind == lost || e.Kind == gone) {
			r.say("%+v", e)
		}
	}
}
