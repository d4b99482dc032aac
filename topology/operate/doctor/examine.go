// Package doctor examines a broker: whether the facts hold that millpond's guarantee rests on. It
// is for a broker whose version or host millpond's own tests do not know.
//
//	report, err := doctor.Examine(ctx, url)
//	for _, c := range report.Checks {
//		fmt.Println(c.Status, c.Name, c.Seen)
//	}
//
// It experiments in scratch queues whose names begin with millpond.doctor., with some dozens of
// messages of a few bytes, and removes the queues at its end, also when its context ends. Every
// scratch queue expires by itself some minutes after a run that was killed, and the scratch
// exchanges go with their queues. Queues of the user are never declared, read or published to. The
// permissions for a plan are found out with requests that the broker cannot fulfil (F31).
package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/topology"
)

// Report is the result of Examine. It is plain data.
type Report struct {
	// Address is the broker's, without credentials.
	Address, VHost string
	// Product and Version are the broker's own words, "RabbitMQ" and "4.3.6" for example.
	Product, Version string
	// Scratch begins the names of all queues and exchanges of this run. They are removed.
	Scratch string
	// Took is how long the run took.
	Took time.Duration
	// Checks has the differences first, then the unknowns; each in a fixed order.
	Checks []Check
}

// Unsafe returns the checks that differ and that the guarantee needs.
func (r *Report) Unsafe() []Check {
	return slices.DeleteFunc(slices.Clone(r.Checks), func(c Check) bool {
		return c.Status != Differs || !c.Needed
	})
}

// Check is one fact about the broker.
type Check struct {
	// Name is short and always the same, except that a check of permissions names its queue.
	Name     string
	Expected string
	// Seen is the observation. It may quote the broker: escape it before a terminal shows it.
	Seen string
	// Meaning says what breaks if it differs, and what to do.
	Meaning string
	Status  Status
	// Needed says that the guarantee rests on it. Otherwise a difference costs time or comfort.
	Needed bool
	// Fact is its number in docs/notes/broker-facts.md, "F5" for example; empty if there is none.
	Fact string
}

// Status is the outcome of a check.
type Status string

const (
	// OK: seen as expected.
	OK Status = "ok"
	// Differs: seen otherwise.
	Differs Status = "differs"
	// Unknown: it could not be told. Seen says why.
	Unknown Status = "unknown"
)

func (s Status) rank() int { return slices.Index([]Status{Differs, Unknown, OK}, s) }

// Option changes Examine.
type Option func(*options) error

type options struct {
	management  string
	amqp        *amqp.Config
	plans       []topology.Plan
	provisioned bool
	patience    time.Duration
	lifetime    time.Duration // of a scratch queue that is not used
}

// WithManagement names RabbitMQ's management API, as operate.WithManagement does: for policies and
// alarms.
//
// Default: only AMQP is asked.
func WithManagement(url string) Option {
	return func(o *options) error {
		if _, err := management.New(url, nil); err != nil {
			return fmt.Errorf("WithManagement: %w", err)
		}
		o.management = url
		return nil
	}
}

// WithAMQP sets amqp091-go's configuration. It is not written to.
//
// Default: amqp091-go's own.
func WithAMQP(config amqp.Config) Option {
	return func(o *options) error {
		o.amqp = &config
		return nil
	}
}

// WithPlan also checks the user's permissions for the names of a plan, and the policies that match
// them. It may be given several times.
//
// Default: the permissions for scratch names, and policies that match all names.
func WithPlan(plan topology.Plan) Option {
	return func(o *options) error {
		if err := topology.ValidatePlan(plan); err != nil {
			return fmt.Errorf("WithPlan: %w", err)
		}
		o.plans = append(o.plans, plan)
		return nil
	}
}

// WithPreProvisioned says that the service declares nothing and needs no permission to declare.
//
// Default: the permissions to declare a plan are checked, too.
func WithPreProvisioned() Option {
	return func(o *options) error {
		o.provisioned = true
		return nil
	}
}

// WithPatience sets how long the slow checks wait: whether a queue drops a message, whether the
// broker takes an unacked delivery back, and whether it sends a held message again. By default the
// broker sends again after 3 minutes and takes back after 30. From 1 s to 24 h.
//
// Default: 15 s, so that all of Examine ends within a minute.
func WithPatience(d time.Duration) Option {
	return func(o *options) error {
		if d < time.Second || d > 24*time.Hour {
			return fmt.Errorf("WithPatience: %v is not from 1s to 24h", d)
		}
		o.patience = d
		return nil
	}
}

const (
	scratch = "millpond.doctor."
	// spare is the time that all of Examine takes beyond the patience, at most.
	spare = 40 * time.Second
	// expiry is how long after the longest run the scratch queues of a killed run are gone.
	expiry = 5 * time.Minute
	// atOnce is the number of checks that run at once, each on its own connection: hosted brokers
	// allow few.
	atOnce = 6
)

// Examine checks the broker at url, amqp or amqps, and returns a report. It returns an error if the
// options are wrong, the broker cannot be reached, or the context ends; the error never quotes a
// password. If scratch queues could not be removed, it returns the report and an error that names
// them.
func Examine(ctx context.Context, url string, opts ...Option) (*Report, error) {
	o := options{patience: 15 * time.Second}
	problems := []error{link.CheckURL(url)}
	for i, option := range opts {
		if option == nil {
			problems = append(problems, fmt.Errorf("option %d is nil", i+1))
			continue
		}
		problems = append(problems, option(&o))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("examine broker: %w", err)
	}
	o.lifetime = cmp.Or(o.lifetime, o.patience+spare+expiry)
	prefix := scratch + strings.ToLower(rand.Text()[:8]) + "."
	e := &examiner{options: o, url: url, prefix: prefix, link: link.Config{
		URL: url, AMQP: o.amqp, Logger: watermill.NopLogger{}, Name: "millpond doctor",
		ConnectTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
	}}
	report, err := e.examine(ctx)
	if err != nil {
		err = fmt.Errorf("examine broker %s: %w", link.Address(url), err)
	}
	return report, err
}

// examiner is one run.
type examiner struct {
	options
	url    string
	link   link.Config
	prefix string
	vhost  string

	mu                sync.Mutex
	queues, exchanges []string // to remove
}

// trial is a check that is yet to be made.
type trial struct {
	Check
	run func(b *bench)
}

func (e *examiner) examine(ctx context.Context) (report *Report, err error) {
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, e.patience+spare)
	defer cancel()
	if e.vhost, err = e.link.Vhost(); err != nil {
		return nil, err
	}
	report = &Report{Address: link.Address(e.url), VHost: e.vhost, Scratch: e.prefix}
	b, end, err := e.bench(limited)
	if err != nil {
		return nil, err
	}
	report.Product, _ = b.conn.Properties["product"].(string)
	report.Version, _ = b.conn.Properties["version"].(string)
	end()
	trials := e.trials(report.Product)
	report.Checks = make([]Check, len(trials))
	var running sync.WaitGroup
	places := make(chan struct{}, atOnce)
	for i, t := range trials {
		running.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			report.Checks[i] = e.try(limited, t)
		})
	}
	running.Wait()
	removing := e.remove(context.WithoutCancel(ctx))
	if err := context.Cause(ctx); err != nil {
		return nil, errors.Join(err, removing)
	}
	slices.SortStableFunc(report.Checks, func(a, b Check) int {
		return cmp.Compare(a.Status.rank(), b.Status.rank())
	})
	report.Took = time.Since(began)
	return report, removing
}

// try makes one check on its own connection, because a broker may answer a request by closing the
// connection.
func (e *examiner) try(ctx context.Context, t trial) Check {
	c := t.Check
	b, end, err := e.bench(ctx)
	if err == nil {
		defer end()
		c.Status, c.Seen, err = b.outcome(t.run)
	}
	switch {
	case err == nil:
	case audit.IsCode(err, amqp.AccessRefused):
		c.Status, c.Seen = Unknown, "not tried, because the user may not: see scratch queues"
	case context.Cause(ctx) != nil:
		c.Status, c.Seen = Unknown, "the broker has not answered in time"
	default:
		c.Status, c.Seen = Unknown, fmt.Sprintf("could not be tried: %v", err)
	}
	return c
}
