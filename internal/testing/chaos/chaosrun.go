package chaos

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

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
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
	Rate      int // messages a second
	Strategy  string
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
	dead    *letters
	lost    *letters // of the stranded queue; nil if the strategy has none
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
	strategy, err := NewStrategy(c.Strategy, c.Bug)
	if err != nil {
		return run, err
	}
	plan, err := strategy.Plan(queueName, Delays)
	if err != nil {
		return run, err
	}
	dir, err := os.MkdirTemp("", "millpond-chaos-")
	if err != nil {
		return run, err
	}
	s := &state{config: c, started: time.Now(), dir: dir, handled: map[int]bool{}}
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

	if err := s.set(cluster, plan); err != nil {
		return run, err
	}
	for _, f := range s.nemesis.fronts {
		defer f.both((*testbroker.Proxy).Close)
	}
	if err := s.nemesis.declare(); err != nil {
		return run, err
	}
	err = s.storm(ctx)
	run.Unconfirmed, run.Ended = int(s.making.unknown.Load()), int(s.fleet.ended.Load())
	if s.lost != nil {
		run.Stranded = s.lost.moved
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
func (s *state) set(cluster *testbroker.Cluster, plan topology.Plan) error {
	n := &nemesis{cluster: cluster, plan: plan, gate: filepath.Join(s.dir, "gate"), say: s.say}
	s.nemesis = n
	s.making = &producers{rate: s.config.Rate}
	for _, url := range cluster.URLs() {
		var f front
		for _, p := range []**testbroker.Proxy{&f.consumers, &f.producers} {
			var err error
			if *p, err = testbroker.OpenProxy(url); err != nil {
				return err
			}
		}
		s.witness.watch(f.consumers)
		n.fronts = append(n.fronts, f)
		s.making.urls = append(s.making.urls, f.producers.URL())
	}
	s.dead = &letters{urls: cluster.URLs(), queue: plan.Dead.RoutingKey, seen: map[string]bool{}}
	for _, q := range plan.Queues {
		if q.Delay == 0 && q.Name != s.dead.queue {
			s.lost = &letters{urls: cluster.URLs(), queue: q.Name, back: queueName}
		}
	}
	n.letters = s.dead
	s.history.Fates, s.history.Timer = Fates(s.config.Seed), s.timer()
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
	s.fleet = newFleet(base, s.config.Consumers, s.dir, &locked{w: s.config.Out, mu: &s.out},
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
	wg.Go(func() { s.dead.run(reading) })
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
	if s.lost != nil {
		wg.Go(func() { s.lost.run(reading) })
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
		len(s.nemesis.plan.Exchanges) > 0, s.config.Only...)
}

// timer returns the broker's dead-letter timer.
func (s *state) timer() time.Duration { return cmp.Or(s.config.Timer, DeadLetterTimer) }

// look prints the progress.
func (s *state) look() {
	confirmed := len(s.making.confirmed())
	s.say("… %d confirmed, %d not, %d dead letters, %d consumers ended by themselves",
		confirmed, s.making.unknown.Load(), len(s.dead.all()), s.fleet.ended.Load())
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
	letters := s.dead.all()
	news += len(letters) - len(s.history.Letters)
	s.history.Letters, s.history.Sent = letters, s.making.confirmed()
	s.dead.mu.Lock()
	s.history.Broken = s.dead.broken
	s.dead.mu.Unlock()
	s.nemesis.mu.Lock()
	s.history.Faults = s.nemesis.struck
	s.nemesis.mu.Unlock()
	s.history.Losses = s.witness.all()
	return news, nil
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

// explain prints the history of the first messages that are lost or were handled too often, and the
// queues with their messages.
func (s *state) explain(r Report) {
	const shown = 5
	for _, n := range r.Lost[:min(shown, len(r.Lost))] {
		s.story("lost", n)
	}
	for _, n := range r.unexplained[:min(shown, len(r.unexplained))] {
		s.story("unexplained", n)
	}
	for _, l := range s.history.Losses {
		if len(r.unexplained) > 0 {
			s.say("%s lost its %s at %s, by itself %t", l.Consumer, l.What, s.since(l.At), l.Own)
		}
	}
	for _, question := range [][]string{
		{
			"list_queues", "name", "messages", "messages_ready", "messages_unacknowledged", "consumers",
			"leader", "online",
		},
		{"list_consumers"},
	} {
		out, err := s.nemesis.cluster.Node(0).RunCtl(context.Background(), question...)
		if err != nil {
			out = err.Error()
		}
		s.say("rabbitmqctl %s:\n%s", strings.Join(question, " "), strings.TrimSpace(out))
	}
}

// story prints the history of a message.
func (s *state) story(what string, n int) {
	for _, sent := range s.history.Sent {
		if sent.N == n {
			s.say("%s %d: confirmed at %s, fails %d times", what, n, s.since(sent.At),
				s.history.Fates.Failures(n))
		}
	}
	attempts := slices.Clone(s.history.Attempts)
	slices.SortFunc(attempts, func(a, b Attempt) int { return a.At.Compare(b.At) })
	for _, a := range attempts {
		if a.N == n {
			s.say("%s %d: attempt %d, %s, by %s at %s, redelivered %t, aside %t, copy %q",
				what, n, a.Attempt, a.Outcome, a.Consumer, s.since(a.At), a.Redelivered, a.Aside, a.Nonce)
		}
	}
	for _, l := range s.history.Letters {
		if l.N == n {
			s.say("%s %d: dead letter, %s, at %s, copy %q", what, n, l.Reason, s.since(l.At), l.Nonce)
		}
	}
}

// since returns the time since the run began, as text.
func (s *state) since(at time.Time) string {
	return at.Sub(s.started).Round(time.Millisecond).String()
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
