package metrics

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millpond-go/millpond/internal/nils"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// Inspector counts the messages of a plan's queues. *operate.Operator is one.
type Inspector interface {
	Inspect(ctx context.Context, plan topology.Plan) (operate.Report, error)
}

// Client says whether retries can be handed over. *topology.Client is one.
type Client interface {
	Healthy() error
}

// Collector asks the broker at each scrape how many messages are in the queues of
// some plans. AMQP tells the ready messages of every queue. The management API, where
// topology.WithManagement names one, tells the messages held for a destination that
// is missing.
//
// WithCacheFor keeps an answer for further scrapes, and WithTimeout bounds a scrape
// while the broker does not answer. Each plan takes its own connection, one after the
// other, which ends with the answer.
type Collector struct {
	client    Client
	inspector Inspector
	plans     []topology.Plan
	timeout   time.Duration
	keep      time.Duration

	mu    sync.Mutex
	asked time.Time
	found []answer // one for each plan
}

var _ prometheus.Collector = (*Collector)(nil)

type answer struct {
	report operate.Report
	err    error
}

// CollectorOption changes a Collector.
type CollectorOption func(*Collector) error

// WithTimeout bounds one scrape, all plans together. It must be positive, and should
// be below the scrape_timeout of Prometheus.
//
// Default: 5 s.
func WithTimeout(d time.Duration) CollectorOption {
	return func(c *Collector) error {
		if d <= 0 {
			return fmt.Errorf("WithTimeout: %v is not positive", d)
		}
		c.timeout = d
		return nil
	}
}

// WithCacheFor sets how long an answer of the broker serves further scrapes. With 0
// every scrape asks.
//
// Default: 10 s.
func WithCacheFor(d time.Duration) CollectorOption {
	return func(c *Collector) error {
		if d < 0 {
			return fmt.Errorf("WithCacheFor: %v is negative", d)
		}
		c.keep = d
		return nil
	}
}

// NewCollector returns a Collector of the queues of plans, which topology.PlanFor returns. The
// error names a nil client or inspector, a plan that is empty or there twice, and options with an
// invalid value.
func NewCollector(
	client Client, inspector Inspector, plans []topology.Plan, opts ...CollectorOption,
) (*Collector, error) {
	c := &Collector{
		client: client, inspector: inspector, timeout: 5 * time.Second, keep: 10 * time.Second,
	}
	problems := []error{apply(c, opts)}
	if nils.Is(client) {
		problems = append(problems, errors.New("client is nil"))
	}
	if nils.Is(inspector) {
		problems = append(problems, errors.New("inspector is nil: use operate.Open"))
	}
	seen := map[string]bool{}
	for i, plan := range plans {
		switch {
		case plan.Queue == "":
			problems = append(problems, fmt.Errorf("plan %d is empty: use topology.PlanFor", i+1))
		case seen[plan.Queue]:
			problems = append(problems, fmt.Errorf("plan %d: queue %q is there twice", i+1, plan.Queue))
		}
		seen[plan.Queue] = true
		c.plans = append(c.plans, plan)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("new collector: %w", err)
	}
	return c, nil
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("millpond_"+name, help, labels, nil)
}

// The label queue names the queue of the plan, the label name the counted queue.
var (
	ofQueue = []string{"queue", "name", "role"}

	descReady = desc("queue_messages_ready",
		"Messages that could be delivered, or that wait; from AMQP.", ofQueue...)
	descConsumers = desc("queue_consumers", "Consumers of the queue; from AMQP.", ofQueue...)
	descTotal     = desc("queue_messages",
		"All messages of the queue, unacked and held ones too; from the management API.", ofQueue...)
	descHeld = desc("queue_messages_held",
		"Messages whose wait is over and that the broker cannot place; from the management API.",
		ofQueue...)
	descMissing = desc("queue_missing", "1 if the broker has no such queue.", ofQueue...)
	descUp      = desc("inspect_up",
		"1 if the broker told how many messages are in the queues of the plan.", "queue")
	descAPI = desc("inspect_management_up",
		"1 if the management API has answered; absent where none is configured.", "queue")
	descHealthy = desc("client_healthy", "1 while retries can be handed over.")
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descReady, descConsumers, descTotal, descHeld, descMissing, descUp, descAPI, descHealthy,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(descHealthy, truth(c.client.Healthy() == nil))
	answers := c.ask()
	plans := map[string]int{} // how many a queue is in
	for _, a := range answers {
		for _, q := range a.report.Queues {
			plans[q.Name]++
		}
	}
	reported := map[string]bool{}
	for i, a := range answers {
		gauge(descUp, truth(a.err == nil), c.plans[i].Queue)
		managed := false
		for _, q := range a.report.Queues {
			managed = managed || q.Total.Known()
			if reported[q.Name] {
				continue
			}
			reported[q.Name] = true
			labels := []string{c.plans[i].Queue, q.Name, string(q.Role)}
			if plans[q.Name] > 1 { // a queue of several plans belongs to none of them
				labels[0] = ""
			}
			for _, count := range []struct {
				desc *prometheus.Desc
				operate.Count
			}{{descReady, q.Ready}, {descConsumers, q.Consumers}, {descTotal, q.Total}, {descHeld, q.Held}} {
				if count.Known() {
					gauge(count.desc, float64(count.N), labels...)
				}
			}
			gauge(descMissing, truth(q.Missing), labels...)
		}
		if managed || a.report.ManagementErr != nil {
			gauge(descAPI, truth(a.report.ManagementErr == nil), c.plans[i].Queue)
		}
	}
}

// ask returns an answer for each plan. Scrapes that come together wait for one.
func (c *Collector) ask() []answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found != nil && time.Since(c.asked) < c.keep {
		return c.found
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	found := make([]answer, len(c.plans))
	for i, plan := range c.plans {
		found[i].report, found[i].err = c.inspector.Inspect(ctx, plan)
	}
	c.found, c.asked = found, time.Now()
	return found
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
