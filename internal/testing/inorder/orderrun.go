package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// config describes a run. Runs with the same one have the same messages, fates and faults; when
// these meet depends on the machine's load.
type config struct {
	Length      time.Duration // of the faults
	Seed        uint64
	Keys, Rate  int
	Instances   int
	Concurrency int
	Percent     int // of the messages fail one to five times
	Dead        int // of a thousand messages become dead letters
	Delays      []time.Duration
	Heartbeat   time.Duration
	Patience    time.Duration // before a wait is a stall, and before a run that is quiet is over
	Unordered   bool          // leaves the option out
	Block       bool          // a dead letter blocks its key until the operator decides
	Program     string        // of the instances; empty for this program
	Schedule    []planned     // replaces the schedule of the seed
	Once        bool          // ends the run at its first message out of order
	Memory      bool          // keeps the broker's data in memory
	Verbose     bool
	Out         io.Writer
}

// slowHandlings of a thousand handlings are slow.
const slowHandlings = 10

// queue is the queue of a run.
const queue = "orders"

// usualDelays are the delays before the second attempt to the sixth.
var usualDelays = []time.Duration{
	50 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second,
	2 * time.Second,
}

// result is the outcome of a run.
type result struct {
	report
	Version string
	Took    time.Duration // from the first message to the last event
	Again   int           // publishes of the producer after a lost confirm
	Ended   int           // instances that ended by themselves
	Failed  []string      // faults that could not be done
	Tokens  int           // messages of the line without a body of the producer, at the end
	Edited  int           // originals of edited letters
	Kept    string        // a folder with the log of events, if something is wrong
}

// problems returns the mistakes for which a run fails. The judge excuses mistakes
// by faults, so a fault that was not done is a mistake, too. An instance that ends by itself has
// panicked.
func (r result) problems() []string {
	all := r.report.problems()
	if len(r.Failed) > 0 {
		all = append(all, fmt.Sprintf("%d faults could not be done", len(r.Failed)))
	}
	if r.Ended > 0 {
		all = append(all, fmt.Sprintf("%d instances ended by themselves", r.Ended))
	}
	return all
}

// runner has the parts of a run.
type runner struct {
	config
	started time.Time
	dir     string
	broker  *testbroker.Cluster
	log     *eventLog
	judge   *judge
	nemesis *nemesis
	making  *producer

	mu     sync.Mutex // guards what follows, and the judge
	last   event      // the last begin
	moved  time.Time
	broken error  // of reading the log
	enough func() // ends the run at its first message out of order

	out sync.Mutex
}

// quickNode lets a node count the messages of its queues every second, and lets its at-least-once
// queues try again after five seconds instead of three minutes (F5).
var quickNode = testbroker.WithAdvancedConfig("[{rabbit, [{quorum_tick_interval, 1000}, " +
	"{dead_letter_worker_publisher_confirm_timeout, 5000}]}].")

// do starts a broker, instances and a producer, lets faults strike, heals, waits and judges. An
// error means that the run could not be done.
func do(ctx context.Context, c config) (done result, err error) {
	r := &runner{config: c, started: time.Now(), moved: time.Now()}
	if r.dir, err = os.MkdirTemp("", "millpond-order-"); err != nil {
		return done, err
	}
	defer func() {
		if err == nil && len(done.problems()) == 0 {
			err = os.RemoveAll(r.dir)
		} else {
			done.Kept = r.dir
		}
	}()
	options := []testbroker.NodeOption{quickNode}
	if c.Memory {
		options = append(options, testbroker.InMemory())
	}
	if r.broker, err = testbroker.StartCluster(ctx, 1, options...); err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, r.broker.Close()) }()
	done.Version = r.broker.Node(0).Version()
	r.say("RabbitMQ %s, seed %d: %d keys, %d messages a second, %d instances, faults for %s",
		done.Version, c.Seed, c.Keys, c.Rate, c.Instances, c.Length)
	if err := r.faultsAndQuiet(ctx, &done); err != nil {
		if r.judge != nil && c.Once && r.judge.report.outOfOrder() && ctx.Err() == nil {
			done.report = r.judge.report
			return done, nil
		}
		return done, err
	}
	letters, left, err := r.inspect(ctx, &done)
	if err != nil {
		return done, err
	}
	counts, _ := r.making.counts()
	done.report = r.judge.close(counts, letters, left)
	done.Again, done.Failed = int(r.making.again.Load()), r.nemesis.failed
	return done, nil
}

// faultsAndQuiet runs the instances from their start to their end.
func (r *runner) faultsAndQuiet(ctx context.Context, done *result) (err error) {
	file := filepath.Join(r.dir, "events")
	if r.log, err = openLog(file); err != nil {
		return err
	}
	defer r.log.close()
	reading, err := readLog(file)
	if err != nil {
		return err
	}
	defer reading.close()

	url := r.broker.Node(0).URL()
	r.nemesis = &nemesis{
		broker: r.broker, log: r.log, active: r.active, say: r.say, count: map[fault]int{},
	}
	urls := make([]string, r.Instances)
	for i := range urls {
		p, err := testbroker.OpenProxy(url)
		if err != nil {
			return err
		}
		defer p.Close()
		urls[i] = p.URL()
		r.nemesis.proxies = append(r.nemesis.proxies, p)
	}
	for range 2 {
		p, err := testbroker.OpenProxy(url)
		if err != nil {
			return err
		}
		defer p.Close()
		r.nemesis.clients = append(r.nemesis.clients, p)
	}
	r.making = newProducer(r.nemesis.clients[0].URL(), queue, r.Seed, r.Keys, r.Rate)
	fates := fates{Seed: r.Seed, Percent: r.Percent, Dead: r.Dead, Slow: slowHandlings}
	r.judge = newJudge(fates, r.Delays, r.Patience, r.making.confirmedAt)
	r.judge.block = r.Block

	if err := declare(url, queue); err != nil {
		return err
	}
	out := &locked{w: r.Out, mu: &r.out}
	stopOperator := func() {}
	if r.Block {
		stopOperator, err = decisions{
			URL: r.nemesis.clients[1].URL(), Delays: r.Delays, Log: file, Fates: fates,
			Verbose: r.Verbose,
		}.start(r.program(), out)
		if err != nil {
			return err
		}
	}
	defer stopOperator()
	f := startFleet(r.program(), service{
		Queue: queue, Ordered: !r.Unordered, Block: r.Block, Concurrency: r.Concurrency, Delays: r.Delays,
		Heartbeat: r.Heartbeat, Verbose: r.Verbose, Log: file, Fates: fates,
	}, urls, out, func(name string) {
		_ = r.log.append(event{kind: struck, at: time.Now(), instance: name, fault: gone})
	})
	r.nemesis.fleet = f
	closing := sync.OnceFunc(f.close)
	defer closing()

	ctx, cancel := context.WithCancel(ctx)
	r.enough = cancel
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { r.read(ctx, reading) })
	stop := make(chan struct{})
	produced := make(chan struct{})
	wg.Go(func() {
		defer close(produced)
		r.making.run(ctx, stop)
	})
	if err := r.await(ctx, time.Minute, "the first message to be handled", func() bool {
		return r.judge.overCount() > 0
	}); err != nil {
		return err
	}
	wg.Go(func() { r.look(ctx) })
	if err := r.nemesis.run(ctx, time.Now().Add(r.Length), r.schedule()); err != nil {
		return err
	}
	if err := r.nemesis.mark(healed, ""); err != nil {
		return err
	}
	r.say("healed")
	rest(ctx, 3*time.Second)
	close(stop)
	<-produced
	if err := r.quiet(ctx); err != nil {
		return err
	}
	_ = r.await(ctx, r.Patience, "duplicates, which may follow after their delays", func() bool {
		return time.Since(r.moved) > slices.Max(r.Delays)+time.Second
	})
	stopOperator()
	closing()
	done.Ended = f.endedByThemselves()
	done.Took = time.Since(r.started)
	return r.take(reading)
}

func (r *runner) program() string {
	if r.Program != "" {
		return r.Program
	}
	return os.Args[0]
}

// schedule returns the schedule of the configuration, which then has an end, or of the seed.
func (r *runner) schedule() func() planned {
	if r.Schedule == nil {
		return schedule(r.Seed, r.Heartbeat)
	}
	next := 0
	return func() planned {
		if next == len(r.Schedule) {
			return planned{pause: r.Length} // past the deadline
		}
		next++
		return r.Schedule[next-1]
	}
}

// active returns the instance that began a handling last.
func (r *runner) active() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last.instance
}

// read gives the events to the judge as they come.
func (r *runner) read(ctx context.Context, reading *reader) {
	for rest(ctx, 50*time.Millisecond) {
		if err := r.take(reading); err != nil {
			r.say("%v", err)
			return
		}
	}
}

func (r *runner) take(reading *reader) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	events, err := reading.next()
	for _, e := range events {
		r.judge.add(e)
		if e.kind == begun {
			r.last = e
		}
	}
	if r.Once && r.judge.report.outOfOrder() {
		r.enough()
	}
	if len(events) > 0 {
		r.moved = time.Now()
	}
	r.broken = errors.Join(r.broken, err)
	return r.broken
}

// await waits until cond is true.
func (r *runner) await(
	ctx context.Context, limit time.Duration, awaited string, cond func() bool,
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

// quiet returns when every confirmed message is over, and every dead letter that blocks its key is
// released or handled, or when nothing has moved for the patience.
func (r *runner) quiet(ctx context.Context) error {
	_, total := r.making.counts()
	began := time.Now()
	for {
		r.mu.Lock()
		over, still, err := r.judge.overCount(), time.Since(r.moved), r.broken
		undecided := r.judge.undecided()
		r.mu.Unlock()
		switch {
		case err != nil:
			return err
		case over >= total && undecided == 0:
			r.say("all %d messages are over %s after the last confirm", total,
				time.Since(began).Round(time.Millisecond))
			return nil
		case still > r.Patience:
			r.say("nothing has moved for %s; %d messages are missing, %d dead letters block", r.Patience,
				total-over, undecided)
			return nil
		}
		if !rest(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// look prints the progress.
func (r *runner) look(ctx context.Context) {
	for rest(ctx, 15*time.Second) {
		_, total := r.making.counts()
		r.mu.Lock()
		over, inversions := r.judge.overCount(), len(r.judge.report.Inversions)
		r.mu.Unlock()
		r.say("… %d confirmed, %d over, %d inversions", total, over, inversions)
	}
}

// inspect reads all that is on the broker after the instances have ended: the dead letters, and the
// messages in other queues.
func (r *runner) inspect(ctx context.Context, done *result) (
	letters []letter, left map[string][]id, err error,
) {
	plan, err := topology.PlanFor(strategy(!r.Unordered, r.Block), queue, backoff.List(r.Delays))
	if err != nil {
		return nil, nil, err
	}
	depths, err := depths(ctx, r.broker.Node(0))
	if err != nil {
		return nil, nil, err
	}
	left = map[string][]id{}
	for name, depth := range depths {
		messages, err := contents(ctx, r.broker.Node(0).URL(), name, depth)
		if err != nil {
			return nil, nil, fmt.Errorf("read queue %q: %w", name, err)
		}
		for _, d := range messages {
			m, _, err := parseBody(d.Body)
			switch {
			case name == plan.Dead.RoutingKey+".originals":
				done.Edited++
			case err != nil && isMark(d):
				m, _ = parseMessageID(d.MessageId)
				left[name] = append(left[name], m)
			case err != nil && name == lineOf(queue):
				done.Tokens++
			case err != nil:
				return nil, nil, fmt.Errorf("queue %q: %w", name, err)
			case name == plan.Dead.RoutingKey:
				reason, _ := d.Headers[header.DeadReason].(string)
				letters = append(letters, letter{m, reason})
			default:
				left[name] = append(left[name], m)
			}
		}
	}
	return letters, left, nil
}

func (r *runner) say(format string, args ...any) {
	r.out.Lock()
	defer r.out.Unlock()
	fmt.Fprintf(r.Out, "%7.1fs  %s\n", time.Since(r.started).Seconds(), fmt.Sprintf(format, args...))
}

// locked is a writer for many goroutines and processes.
type locked struct {
	w  io.Writer
	mu *sync.Mutex
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
