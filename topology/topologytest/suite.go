package topologytest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/experiment"
	"github.com/millpond-go/millpond/internal/testing/passage"
	"github.com/millpond-go/millpond/topology"
)

// Config says which strategy Run tests, and on which broker.
type Config struct {
	// Strategy is the strategy under test. If it has an exchange of yours, such as the Via of
	// topology.PerQueue or the target of DeadLetters, the exchange must exist. Required.
	Strategy topology.Strategy
	// URL of RabbitMQ, such as amqp://guest:guest@localhost:5672/. Its user must be allowed to
	// declare, use and delete the queues and exchanges of the strategy, and queues that begin with
	// "topologytest.". Default: none, and the checks that need a broker are skipped.
	URL string
	// ManagementURL of the same broker, with the name and password of an administrator, such as
	// http://admin:secret@localhost:15672. Run then adds a user with the rights of
	// Plan.Permissions for a moment. Default: none, and the check of permissions is skipped.
	ManagementURL string
	// QueueArguments are the arguments of the queues that are consumed, if the strategy needs some,
	// as native.Strategy does. Default: none, a classic queue.
	QueueArguments amqp.Table
	// DeleteShared says that no other program uses the queues and exchanges that the plans of
	// several queues have in common, because their names belong to this test, as with
	// topology.Shared{Prefix: "test-17"}. Run then deletes them at the end, with their messages.
	// Default: false, they stay, and the log names them.
	DeleteShared bool
	// FixedDelays says that the delays of a queue never change while its wait queues exist, because
	// their names do not tell delays apart, as with some WaitName of topology.PerAttempt.
	// Default: false, and the policy of a queue must be free to change.
	FixedDelays bool
	// Patience is how much later than it is due a message may come before a check fails.
	// Default: 30s.
	Patience time.Duration
}

const defaultPatience = 30 * time.Second

// check returns every problem of the configuration.
func (c Config) check() error {
	var problems []error
	if c.Strategy == nil {
		problems = append(problems, errors.New("Config.Strategy is nil: set the strategy to test"))
	}
	if c.ManagementURL != "" && c.URL == "" {
		problems = append(problems, errors.New("Config.ManagementURL without a URL: set both"))
	}
	if c.Patience < 0 {
		problems = append(problems, errors.New("Config.Patience is negative"))
	}
	return errors.Join(problems...)
}

// Run tests a strategy, in subtests of t. The subtests "Plan" need no broker; if one of them fails,
// the others do not run. The subtests "Broker" run a service with the strategy on the broker. They
// run at once, because they mostly wait; so the time of each is not its own. "End" looks at all
// that the others have left.
//
// Run deletes all that it declared, except for the parts that other programs may share; see
// Config.DeleteShared. It refuses a dead-letter queue that exists and has messages or consumers,
// because it would take away their messages.
func Run(t *testing.T, c Config) {
	t.Helper()
	if err := c.check(); err != nil {
		t.Fatalf("topologytest: %v", err)
	}
	run(t.Helper, c, func(group string, checked []*trial) (passed bool) {
		t.Helper()
		return t.Run(group, func(t *testing.T) {
			t.Helper()
			for _, one := range checked {
				t.Run(one.Name, func(t *testing.T) {
					t.Helper()
					report(t, one)
				})
			}
		})
	})
}

// report gives the result of a trial to a subtest.
func report(t testing.TB, tr *trial) {
	t.Helper()
	for _, line := range tr.Lines {
		t.Log(line)
	}
	switch {
	case tr.Failed:
		t.FailNow()
	case tr.Skipped:
		t.SkipNow()
	}
}

// trial is the run of one check.
type trial = experiment.Trial

// check is one promise of a strategy.
type check struct {
	name string
	run  func(*trial, *suite)
}

// suite holds the parts that the checks of one run share.
type suite struct {
	Config
	prefix string // of the names of its queues

	parts  footprint
	rounds passage.Rounds

	conn *amqp.Connection
	main *service // of the queues a and b
	a, b *inbox

	mu      sync.Mutex
	letters map[string][]amqp.Delivery // dead and stranded messages by id
}

func newSuite(c Config) *suite {
	c.Patience = cmp.Or(c.Patience, defaultPatience)
	prefix := "topologytest." + strings.ToLower(rand.Text()[:10])
	return &suite{Config: c, prefix: prefix, letters: map[string][]amqp.Delivery{}}
}

// run runs all checks and tells them in groups. helper lets failures show the line of the test
// that calls Run.
func run(
	helper func(), c Config, tell func(group string, checked []*trial) (passed bool),
) {
	helper()
	s := newSuite(c)
	if !tell("Plan", s.inTurn(planChecks...)) {
		return
	}
	if c.URL == "" {
		none := s.try(check{"Skipped", func(tr *trial, _ *suite) {
			tr.Skipf("Config.URL is empty: set the URL of a RabbitMQ to test the strategy there")
		}})
		tell("Broker", none)
		return
	}
	begin := experiment.New(context.Background(), "Start", s.Patience)
	begin.Run(func() { s.start(begin) })
	if begin.Failed {
		begin.Clean()
		s.parts.tellKept(begin)
		tell("Broker", []*trial{begin})
		return
	}
	tell("Broker", s.try(brokerChecks...))
	left := s.try(endChecks...)
	removed := experiment.New(context.Background(), "Removed", s.Patience)
	removed.Inherit(begin)
	removed.Clean()
	s.parts.tellKept(removed)
	tell("End", append(left, removed))
}

// inTurn runs one check after the other, so that a strategy that is not safe for concurrent use
// fails the check for that alone.
func (s *suite) inTurn(checks ...check) (all []*trial) {
	for _, c := range checks {
		all = append(all, s.try(c)...)
	}
	return all
}

// try runs checks at once.
func (s *suite) try(checks ...check) []*trial {
	var wg sync.WaitGroup
	all := make([]*trial, len(checks))
	for i, c := range checks {
		all[i] = experiment.New(context.Background(), c.name, s.Patience)
		wg.Go(func() {
			all[i].Run(func() { c.run(all[i], s) })
			all[i].Clean()
		})
	}
	wg.Wait()
	return all
}

// queueConfig is watermill-amqp's configuration of the queues of the suite.
func (s *suite) queueConfig(url string) wamqp.Config {
	cfg := wamqp.NewDurableQueueConfig(url)
	cfg.Queue.Arguments = s.QueueArguments
	return cfg
}

// queue returns the name of a new queue of the suite.
func (s *suite) queue(purpose string) string { return fmt.Sprintf("%s.%s", s.prefix, purpose) }
