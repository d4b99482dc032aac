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
	"strings"
	"sync"
	"time"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// settings describe a run. Runs with the same ones have the same messages, fates and faults; when
// these meet depends on the machine's load.
type settings struct {
	Seed   uint64
	Length time.Duration // of the faults

	Nodes     int
	Memory    bool          // keeps the broker's data in memory
	WAL       int           // the bytes after which a node rolls the log of its quorum queues over
	Timer     time.Duration // the broker's dead-letter timer; 0 leaves it as shipped
	Queues    int           // of other services on the cluster
	Instances int

	Strategy              string
	Block                 bool // a dead letter blocks its key until the operator decides
	Handlers, Concurrency int  // of a line, of a handler
	Prefetch              int
	Delays                []time.Duration
	Timeout, Heartbeat    time.Duration // of confirms, of connections
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

// deadLetterTimer is the time after which RabbitMQ sends a message again that an at-least-once
// queue could not dead-letter (F5).
const deadLetterTimer = 180 * time.Second

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
	making  *producers
	witness *witness

	mu      sync.Mutex // guards what follows
	events  []event
	seen    progress
	judged  time.Time               // with Once
	broken  error                   // of reading the log
	left    map[string][]id         // messages on the broker at the end, by queue
	missing []string                // queues of other services without their message
	tokens  map[string]int          // other messages, by queue
	ended   int                     // instances that ended by themselves
	version string                  // of the broker
	enough  context.CancelCauseFunc // ends the run
	out     sync.Mutex
}

// progress is what the run knows of the log without a judge.
type progress struct {
	block     bool
	active    string // the instance that began a handling last
	moved     time.Time
	sent      map[id]bool
	over      map[id]bool
	handling  map[string]map[string]int // by line and instance
	lastBegin map[string]time.Time      // by line
}

var errEnough = errors.New("the judge has seen enough")

// do starts a cluster, lets everything break, heals it, waits and judges. The findings are in the
// report. An error means that the run could not be done.
func (sc *scenario) do(ctx context.Context, s settings) (rep *report, err error) {
	r := &run{settings: s, scenario: sc, started: time.Now()}
	r.seen = progress{
		block: s.Block, moved: time.Now(), sent: map[id]bool{}, over: map[id]bool{},
		handling: map[string]map[string]int{}, lastBegin: map[string]time.Time{},
	}
	if r.lines, err = newLines(s); err != nil {
		return nil, err
	}
	if r.dir, err = os.MkdirTemp("", "millpond-lab-"); err != nil {
		return nil, err
	}
	defer func() {
		switch {
		case err == nil && len(rep.problems) == 0:
			err = os.RemoveAll(r.dir)
		case rep != nil:
			rep.kept = r.dir
		default:
			err = fmt.Errorf("%w; the log is in %s", err, r.dir)
		}
	}()
	if r.cluster, err = testbroker.StartCluster(ctx, s.Nodes, r.nodeOptions()...); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.cluster.Close()) }()
	r.version = r.cluster.Node(0).Version()
	r.say("%s: RabbitMQ %s, seed %d, %d nodes, %d instances, %d messages a second, %s", sc.name,
		r.version, s.Seed, s.Nodes, s.Instances, s.Rate, s.Length)
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
	rep = judge(r.history(), rules)
	r.mu.Lock()
	ended, tokens := r.ended, r.tokens
	r.mu.Unlock()
	if ended > 0 {
		rep.problem("instances ended by themselves", fmt.Sprint(ended))
	}
	rep.row("besides", "%d messages not confirmed to the producers, %d other messages left",
		r.making.unknown.Load(), len(tokens))
	if len(rep.problems) > 0 {
		r.explain(rep)
	}
	return rep, nil
}

func (r *run) nodeOptions() []testbroker.NodeOption {
	// Figures of queues are as old as a tick.
	terms := []string{"{quorum_tick_interval, 1000}"}
	if r.Timer > 0 {
		terms = append(terms,
			fmt.Sprintf("{dead_letter_worker_publisher_confirm_timeout, %d}", r.Timer.Milliseconds()))
	}
	options := []testbroker.NodeOption{
		testbroker.WithAdvancedConfig("[{rabbit, [" + strings.Join(terms, ", ") + "]}]."),
	}
	if r.Memory {
		options = append(options, testbroker.InMemory())
	}
	if r.WAL > 0 {
		options = append(options, testbroker.WithConfig(fmt.Sprint("raft.wal_max_size_bytes = ", r.WAL)))
	}
	return options
}

// work runs the producers and the fleet from their start to their end.
func (r *run) work(ctx context.Context) (err error) {
	file := filepath.Join(r.dir, eventsFile)
	if r.log, err = openLog(file); err != nil {
		return err
	}
	defer r.log.close()
	reading, err := readLog(file)
	if err != nil {
		return err
	}
	defer reading.close()
	places, err := r.connect()
	if err != nil {
		return err
	}
	defer r.nemesis.which(everyProxy, (*testbroker.Proxy).Close)
	if err := r.nemesis.declare(ctx); err != nil {
		return err
	}
	others := crowd{r.cluster.URLs(), r.Queues}
	if err := others.declare(ctx); err != nil {
		return fmt.Errorf("declare the queues of other services: %w", err)
	}
	out := &locked{w: r.Out, mu: &r.out}
	r.fleet = startFleet(places, out, r.log)
	r.nemesis.fleet = r.fleet
	closing := sync.OnceFunc(r.fleet.close)
	defer closing()

	reads, stopReads := context.WithCancel(ctx)
	publishes, stopPublishes := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopReads()
	defer stopPublishes()
	wg.Go(func() { r.read(reads, reading) })
	for _, l := range r.nemesis.letters {
		wg.Go(func() { l.run(reads) })
	}
	published := make(chan struct{})
	wg.Go(func() {
		defer close(published)
		r.making.run(publishes)
	})
	if err := r.await(ctx, "the first message to be handled", time.Minute,
		func() bool { return len(r.seen.over) > 0 }); err != nil {
		return err
	}
	wg.Go(func() { r.watch(reads) })
	if r.Samples > 0 {
		wg.Go(func() { r.sample(reads) })
	}
	r.nemesis.run(ctx, r.schedule())
	if err := r.nemesis.heal(ctx); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	r.say("healed")
	rest(ctx, min(3*time.Second, r.Length))
	stopPublishes()
	<-published
	_, _, stranded := r.lines.parts()
	for _, name := range stranded {
		back := func(m id) string { return r.lines.of(m).queue }
		l := &letters{urls: r.cluster.URLs(), queue: name, log: r.log, back: back}
		wg.Go(func() { l.run(reads) })
	}
	if err := r.calm(ctx); err != nil {
		return err
	}
	stopReads()
	wg.Wait()
	closing()
	if err := r.take(reading); err != nil {
		return err
	}
	r.ended = r.fleet.endedByThemselves()
	if r.missing, err = others.missing(ctx); err != nil {
		return err
	}
	return r.inspect(ctx, reading)
}

// connect puts proxies between the nodes and their clients, makes all parts of the run, and returns
// the instances of the fleet.
func (r *run) connect() (places []instance, err error) {
	r.nemesis = &nemesis{
		settings: r.settings, cluster: r.cluster, lines: r.lines, dir: r.dir, log: r.log,
		active: r.active, say: r.say, calm: time.Now(),
	}
	r.witness = newWitness(cmp.Or(r.Timeout, 5*time.Second), func(e event) {
		if err := r.log.append(e); err != nil {
			r.say("%v", err)
		}
	})
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
			to := func(m id) string { return r.lines.of(m).queue }
			r.making = &producers{settings: r.settings, urls: urls, to: to, log: r.log}
			continue
		}
		first := place % len(urls)
		places = append(places, instance{
			settings: r.settings, URLs: slices.Concat(urls[first:], urls[:first]), Dir: r.dir,
			Operator: place == r.Instances,
		})
	}
	for _, l := range r.lines {
		if !r.Block { // the operator decides about the letters in their queue
			r.nemesis.letters = append(r.nemesis.letters, &letters{
				urls: r.cluster.URLs(), queue: l.plan.Dead.RoutingKey, log: r.log,
			})
		}
	}
	return places, nil
}

// schedule returns the schedule of the settings or of the seed.
func (r *run) schedule() schedule {
	if r.Schedule != nil {
		return r.Schedule
	}
	return r.scenario.schedule(r.settings)
}

// active returns the instance that began a handling last.
func (r *run) active() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen.active
}

// read takes the events in as they come, and prints the progress.
func (r *run) read(ctx context.Context, reading *logReader) {
	const looks = 15 * time.Second
	for said := time.Now(); rest(ctx, 50*time.Millisecond); {
		if err := r.take(reading); err != nil {
			r.say("%v", err)
			return
		}
		if time.Since(said) > looks {
			said = time.Now()
			r.mu.Lock()
			confirmed, over := len(r.seen.sent), len(r.seen.over)
			r.mu.Unlock()
			r.say("… %d confirmed, %d over", confirmed, over)
		}
	}
}

func (r *run) take(reading *logReader) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	events, err := reading.next()
	for _, e := range events {
		r.seen.add(e)
	}
	r.events = append(r.events, events...)
	r.broken = errors.Join(r.broken, err)
	if r.Once && time.Since(r.judged) > 2*time.Second {
		r.judged = time.Now()
		if rep := judge(r.history(), r.scenario.early); len(rep.problems) > 0 {
			r.enough(errEnough)
		}
	}
	return r.broken
}

func (p *progress) add(e event) {
	who, line, _ := strings.Cut(e.Who, "/")
	switch e.Kind {
	case sent:
		p.sent[e.id] = true
	case begun:
		p.active, p.lastBegin[line] = who, e.At
		if p.handling[line] == nil {
			p.handling[line] = map[string]int{}
		}
		p.handling[line][who]++
	case ended:
		p.handling[line][who]--
		if e.Outcome == handled || p.block && e.Outcome == gaveUp {
			p.over[e.id] = true
		}
	case letter:
		p.over[e.id] = true
	case gone:
		for _, of := range p.handling {
			delete(of, who)
		}
		return
	default:
		return
	}
	p.moved = time.Now()
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

// calm returns when no message is missing, or when nothing has moved for four dead-letter timers:
// RabbitMQ 4.0.5 has held messages for more than two. Then duplicates may follow for a while.
func (r *run) calm(ctx context.Context) error {
	const least = 10 * time.Second // a busy machine is slower than a short timer
	patience := max(4*cmp.Or(r.Timer, deadLetterTimer), least)
	began, missing := time.Now(), 0
	err := r.await(ctx, "calm", 24*time.Hour, func() bool {
		missing = r.waiting()
		return missing == 0 || time.Since(r.seen.moved) > patience
	})
	if err != nil {
		return err
	}
	if missing == 0 {
		r.say("all messages are over %s after the last confirm",
			time.Since(began).Round(time.Millisecond))
	} else {
		r.say("nothing has moved for %s; %d messages are missing", patience, missing)
	}
	most := slices.Max(r.Delays) + time.Second
	_ = r.await(ctx, "duplicates", 4*most,
		func() bool { return time.Since(r.seen.moved) > most })
	return ctx.Err()
}

// waiting counts the confirmed messages that are not over, and the letters without a decision. mu
// is held.
func (r *run) waiting() (missing int) {
	for m := range r.seen.sent {
		if !r.seen.over[m] {
			missing++
		}
	}
	if missing == 0 && r.Block {
		missing = r.history().order(r.Delays, r.Bound, true).undecided()
	}
	return missing
}

// depths returns the number of messages of each queue, held ones included, after two equal looks.
func (r *run) depths(ctx context.Context) (map[string]int, error) {
	var before string
	for {
		out, err := r.cluster.Node(0).RunCtl(ctx, "list_queues", "--no-table-headers", "name",
			"messages")
		if err != nil {
			return nil, err
		}
		if out == before {
			break
		}
		before = out
		if !rest(ctx, 2*time.Second) {
			return nil, ctx.Err()
		}
	}
	found := map[string]int{}
	for line := range strings.Lines(before) {
		var name string
		var n int
		if _, err := fmt.Sscan(line, &name, &n); err != nil {
			return nil, fmt.Errorf("list_queues: %q: %w", line, err)
		}
		found[name] = n
	}
	return found, nil
}

// inspect reads all that is on the broker after the instances have ended: dead letters, which it
// logs, and the messages in other queues.
func (r *run) inspect(ctx context.Context, reading *logReader) error {
	depths, err := r.depths(ctx)
	if err != nil {
		return err
	}
	dead := map[string]bool{}
	for _, l := range r.lines {
		dead[l.plan.Dead.RoutingKey] = true
	}
	r.left, r.tokens = map[string][]id{}, map[string]int{}
	for name, depth := range depths {
		if depth == 0 || strings.HasPrefix(name, crowdName) {
			continue
		}
		messages, err := contents(ctx, r.cluster.Node(0).URL(), name, depth)
		if err != nil {
			return fmt.Errorf("read queue %q: %w", name, err)
		}
		for _, d := range messages {
			m, _, err := parseID(string(d.Body))
			note, _ := d.Headers[keys.Line].(string)
			mark := order.ParseNote(note).Kind == order.Block
			switch {
			case string(d.Body) == filler, strings.HasSuffix(name, ".originals"):
			case dead[name]:
				if err := r.log.append(letterOf(d)); err != nil {
					return err
				}
			case err != nil && mark: // of a letter that blocks its key
				m, _, _ = parseID(d.MessageId)
				r.left[name] = append(r.left[name], m)
			case err != nil:
				r.tokens[name]++
			default:
				r.left[name] = append(r.left[name], m)
			}
		}
	}
	return r.take(reading)
}

func (r *run) say(format string, args ...any) {
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
