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
	"github.com/millpond-go/millpond/topology"
)

// DeadLetterTimer is after how long RabbitMQ sends once more what an at-least-once queue could not
// dead-letter (F5).
const DeadLetterTimer = 180 * time.Second

// Config is what a run is like. A run with the same one has the same messages, fates and faults;
// what they meet depends on the machine's load.
type Config struct {
	Seed      uint64
	Faults    time.Duration // for how long things break
	Nodes     int
	Consumers int
	Rate      int // messages a second
	Strategy  string
	Bug       Bug
	Timer     time.Duration // replaces DeadLetterTimer; 0 leaves the broker as shipped
	Only      []Kind        // the faults that strike; all if empty
	// Schedule replaces that of the seed, and Timeout the consumers' confirm timeout of five seconds.
	Schedule *Schedule
	Timeout  time.Duration
	Out      io.Writer // what happens, as it happens
	Verbose  bool      // what the library logs, too
}

// Run is one run.
type Run struct {
	Config
	Version string
	Report  Report
	// Unconfirmed are messages that the producers could not have confirmed, Stranded those that were
	// moved back to their queue in the end, and Ended the consumers that ended by themselves.
	Unconfirmed, Stranded, Ended int
	// Kept is a folder with the consumers' logs, if something is wrong.
	Kept string
}

// state is what has been seen so far.
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

// Do starts a cluster, lets everything break, heals it, waits and checks. The error says why the
// run could not be done; what it found is in the report.
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

// set puts everything in its place, and starts nothing.
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

// storm is the run itself: faults, healing, quiet.
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

// schedule is that of the configuration.
func (s *state) schedule() Schedule {
	if s.config.Schedule != nil {
		return *s.config.Schedule
	}
	return NewSchedule(s.config.Seed, s.config.Faults, s.config.Nodes,
		len(s.nemesis.plan.Exchanges) > 0, s.config.Only...)
}

// timer is the broker's dead-letter timer.
func (s *state) timer() time.Duration { return cmp.Or(s.config.Timer, DeadLetterTimer) }
