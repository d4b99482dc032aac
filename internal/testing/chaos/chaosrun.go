package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// DeadLetterTimer is the time after which RabbitMQ sends a message again that an at-least-once
// queue could not dead-letter (F5).
const DeadLetterTimer = 180 * time.Second

// Config describes a run. Runs with the same one have the same messages, fates and faults; when
// these meet depends on the machine's load.
type Config struct {
	Seed      uint64
	Faults    time.Duration // length of the faults
	Nodes     int
	Consumers int
	Rate      int    // messages a second
	Strategy  string // of Strategies, or AllStrategies
	Queues    int    // of other services on the cluster
	Bug       Bug
	Timer     time.Duration // replaces DeadLetterTimer; 0 leaves the broker as shipped
	Only      []Kind        // the faults that strike; all if empty
	// Schedule replaces the schedule of the seed, and Timeout the consumers' confirm timeout of five
	// seconds.
	Schedule *Schedule
	Timeout  time.Duration
	Out      io.Writer // gets the events
	Verbose  bool      // prints the library's log, too
}

// Run is one run.
type Run struct {
	Config
	Version string
	Report  Report
	// Unconfirmed counts messages without a confirm, Stranded messages that were moved back to their
	// queue in the end, and Ended consumers that ended by themselves.
	Unconfirmed, Stranded, Ended int
	// Kept is a folder with the consumers' logs, if something is wrong.
	Kept string
}

// state has all observations so far.
type state struct {
	config  Config
	started time.Time
	dir     string
	nemesis *nemesis
	fleet   *fleet
	making  *producers
	lines   lines
	dead    []*letters // of each line
	lost    []*letters // of the stranded queues; none if no strategy has any
	tails   []*tail
	witness witness

	history History
	handled map[int]bool
	out     sync.Mutex
}

// Do starts a cluster, lets everything break, heals it, waits and checks. The findings are in the
// report. An error means that the run could not be done.
func Do(ctx context.Context, c Config) (run Run, err error) {
	run.Config = c
	all, err := newLines(c.Strategy, c.Bug)
	if err != nil {
		return run, err
	}
	dir, err := os.MkdirTemp("", "millpond-chaos-")
	if err != nil {
		return run, err
	}
	s := &state{config: c, started: time.Now(), dir: dir, lines: all, handled: map[int]bool{}}
	defer func() {
		if err == nil && run.Report.Err() == nil {
			err = os.RemoveAll(dir)
		} else {
			run.Kept = dir
		}
	}()

	var options []testbroker.NodeOption
	if c.Timer > 0 {
		options = append(options, testbroker.WithAdvancedConfig(
			fmt.Sprintf("[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, %d}]}].",
				c.Timer.Milliseconds())))
	}
	cluster, err := testbroker.StartCluster(ctx, c.Nodes, options...)
	if err != nil {
		return run, err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	run.Version = cluster.Node(0).Version()
	s.say("seed %d: %d nodes of RabbitMQ %s, strategy %s, faults for %s%s", c.Seed, c.Nodes,
		run.Version, c.Strategy, c.Faults, planted(c.Bug))

	if err := s.set(cluster); err != nil {
		return run, err
	}
	for _, f := range s.nemesis.fronts {
		defer f.both((*testbroker.Proxy).Close)
	}
	if err := s.nemesis.declare(); err != nil {
		return run, err
	}
	others := crowd{cluster.URLs(), c.Queues}
	if err := others.declare(ctx); err != nil {
		return run, fmt.Errorf("declare the queues of other services: %w", err)
	}
	if c.Queues > 0 {
		s.say("%d queues of other services", c.Queues)
	}
	err = s.storm(ctx)
	run.Unconfirmed, run.Ended = int(s.making.unknown.Load()), int(s.fleet.ended.Load())
	for _, l := range s.lost {
		run.Stranded += l.moved
	}
	if err == nil {
		s.history.Missing, err = others.missing(ctx)
	}
	if err != nil {
		return run, err
	}
	run.Report = Check(s.history)
	if run.Report.Err() != nil {
		s.explain(run.Report)
	}
	return run, nil
}

func planted(bug Bug) string {
	if bug == "" {
		return ""
	}
	return ", with the bug " + string(bug)
}

// set makes all parts of the run, and starts none.
func (s *state) set(cluster *testbroker.Cluster) error {
	n := &nemesis{
		cluster: cluster, lines: s.lines, parts: s.lines.parts(), gate: filepath.Join(s.dir, "gate"),
		say: s.say,
	}
	s.nemesis = n
	fates := Fates(s.config.Seed)
	s.making = &producers{rate: s.config.Rate, to: func(n int) (string, uint8) {
		return s.lines.of(n).queue, uint8(fates.Priority(n))
	}}
	for _, url := range cluster.URLs() {
		var f front
		for _, p := range []**testbroker.Proxy{&f.consumers, &f.producers} {
			var err error
			if *p, err = testbroker.OpenProxy(url); err != nil {
				return err
			}
		}
		s.witness.timeout = cmp.Or(s.config.Timeout, confirmTimeout)
		s.witness.watch(f.consumers)
		n.fronts = append(n.fronts, f)
		s.making.urls = append(s.making.urls, f.producers.URL())
	}
	for _, l := range s.lines {
		s.dead = append(s.dead, &letters{
			urls: cluster.URLs(), queue: l.plan.Dead.RoutingKey, seen: map[string]bool{},
		})
	}
	for _, name := range s.lines.stranded() {
		s.lost = append(s.lost, &letters{urls: cluster.URLs(), queue: name, back: s.lines.queueOf})
	}
	n.letters = s.dead
	s.history.Fates, s.history.Timer = fates, s.timer()
	return nil
}

// storm runs the faults, heals the cluster and waits for quiet.
func (s *state) storm(ctx context.Context) error {
	base := consumer{
		Seed: s.history.Fates, Strategy: s.config.Strategy, Bug: s.config.Bug,
		Gate: s.nemesis.gate, Timeout: s.config.Timeout, Verbose: s.config.Verbose,
	}
	for _, f := range s.nemesis.fronts {
		base.URLs = append(base.URLs, f.consumers.URL())
	}
	s.fleet = newFleet(base, s.lines, s.config.Consumers, s.dir, &locked{w: s.config.Out, mu: &s.out},
		s.witness.record)
	s.nemesis.fleet, s.tails = s.fleet, s.fleet.logs()
	defer s.fleet.close()

	reading, stopReading := context.WithCancel(ctx)
	producing, stopProducing := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.making.wait()
	defer stopProducing()
	defer stopReading()
	for _, l := range s.dead {
		wg.Go(func() { l.run(reading) })
	}
	s.making.start(producing)
	if err := s.await(ctx, "the first message to be handled", time.Minute,
		func() bool { return len(s.handled) > 0 }); err != nil {
		return err
	}

	broken, healed := context.WithCancel(ctx)
	wg.Go(func() {
		for rest(broken, 15*time.Second) {
			s.look()
		}
	})
	s.nemesis.run(ctx, s.schedule())
	err := s.nemesis.heal(ctx)
	healed()
	if err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	s.say("healed")
	rest(ctx, 3*time.Second)
	stopProducing()
	s.making.wait()
	for _, l := range s.lost {
		wg.Go(func() { l.run(reading) })
	}
	if err := s.quiet(ctx); err != nil {
		return err
	}
	rest(ctx, 3*time.Second) // duplicates may follow
	s.fleet.close()
	_, err = s.read()
	return err
}

// schedule returns the schedule of the configuration or of the seed.
func (s *state) schedule() Schedule {
	if s.config.Schedule != nil {
		return *s.config.Schedule
	}
	return NewSchedule(s.config.Seed, s.config.Faults, s.config.Nodes,
		len(s.nemesis.parts.Exchanges) > 0, s.config.Only...)
}

// timer returns the broker's dead-letter timer.
func (s *state) timer() time.Duration { return cmp.Or(s.config.Timer, DeadLetterTimer) }

// look prints the progress.
func (s *state) look() {
	confirmed := len(s.making.confirmed())
	s.say("… %d confirmed, %d not, %d dead letters, %d consumers ended by themselves",
		confirmed, s.making.unknown.Load(), len(s.letters()), s.fleet.ended.Load())
}

// await reads the logs until cond is true.
func (s *state) await(
	ctx context.Context, awaited string, limit time.Duration, cond func() bool,
) error {
	for deadline := time.Now().Add(limit); ; {
		if _, err := s.read(); err != nil {
			return err
		}
		if cond() {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %s for %s", limit, awaited)
		}
		if !rest(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// minQuiet is a lower limit, because a busy machine is slower than a short timer.
const minQuiet = 10 * time.Second

// quiet returns when no message is missing, or when nothing has moved for four dead-letter timers:
// RabbitMQ 4.0.5 has held messages for more than two.
func (s *state) quiet(ctx context.Context) error {
	timer := s.timer()
	begun, moved, said := time.Now(), time.Now(), time.Now()
	before := -1
	for {
		news, err := s.read()
		if err != nil {
			return err
		}
		missing := s.missing()
		if news > 0 || missing != before {
			moved, before = time.Now(), missing
		}
		switch {
		case missing == 0:
			s.say("all accounted for %s after the last confirm", time.Since(begun).Round(time.Second))
			return nil
		case time.Since(moved) > max(4*timer, minQuiet):
			s.say("nothing has moved for %s, %d messages missing", time.Since(moved).Round(time.Second),
				missing)
			return nil
		case time.Since(said) > 20*time.Second:
			said = time.Now()
			s.say("quiet: %d messages missing", missing)
		}
		if !rest(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// read takes in the news, and returns their number.
func (s *state) read() (news int, err error) {
	for _, t := range s.tails {
		attempts, err := t.read()
		if err != nil {
			return news, err
		}
		news += len(attempts)
		s.history.Attempts = append(s.history.Attempts, attempts...)
		for _, a := range attempts {
			if a.Outcome == Handled {
				s.handled[a.N] = true
			}
		}
	}
	letters := s.letters()
	news += len(letters) - len(s.history.Letters)
	s.history.Letters, s.history.Sent = letters, s.making.confirmed()
	s.history.Broken = nil
	for _, l := range s.dead {
		l.mu.Lock()
		s.history.Broken = append(s.history.Broken, l.broken...)
		l.mu.Unlock()
	}
	s.nemesis.mu.Lock()
	s.history.Faults = s.nemesis.struck
	s.nemesis.mu.Unlock()
	s.history.Losses = s.witness.all()
	return news, nil
}

// letters returns the dead letters of all lines so far.
func (s *state) letters() (all []Letter) {
	for _, l := range s.dead {
		all = append(all, l.all()...)
	}
	return all
}

// missing returns the number of confirmed messages that are neither handled nor dead letters.
func (s *state) missing() int {
	dead := map[int]bool{}
	for _, l := range s.history.Letters {
		dead[l.N] = true
	}
	missing := 0
	for _, sent := range s.history.Sent {
		if !s.handled[sent.N] && !dead[sent.N] {
			missing++
		}
	}
	return missing
}

func (s *state) say(format string, args ...any) {
	s.out.Lock()
	defer s.out.Unlock()
	fmt.Fprintf(s.config.Out, "%7.1fs  %s\n", time.Since(s.started).Seconds(),
		fmt.Sprintf(format, args...))
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
