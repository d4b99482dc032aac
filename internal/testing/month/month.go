// Package month runs a month of a service in minutes and checks that it loses nothing.
//
// Time is compressed by [Speed]. The library's own waits are, by package clock. So are the limits
// that users and operators set: the broker's consumer timeout, the delays of the policy, the limit
// on the age. Not compressed are the times that a real broker needs: a confirm, a connect, a drain.
// Each day has twenty minutes of traffic, an event with traffic, and a deployment in its night.
// The quiet hours are left out, because nothing in them has a limit.
package month

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// Speed is how much faster the time of a run is: a second is ten minutes.
const Speed = 600

// Config says how to run a month.
type Config struct {
	Days  int
	Nodes int // 3 for a cluster, which also has hours without a majority
	Out   io.Writer
}

const (
	replicas    = 2
	concurrency = 4
	prefetch    = 10
	queue       = "orders"
	// drained bounds the time from the last message to the end of all.
	drained = 90 * time.Second
	// confirmTimeout is longer than a compressed one, because the broker is not faster.
	confirmTimeout = 250 * time.Millisecond
)

// the returns the compressed length of d.
func the(d time.Duration) time.Duration { return d / Speed }

var (
	consumerTimeout = the(30 * time.Minute)
	trafficOfADay   = the(10 * time.Minute)
	maxAge          = the(8 * time.Hour)
)

// Report is the outcome of a run.
type Report struct {
	Version                       string
	Took                          time.Duration
	Messages, Handled, Dead, Lost int
	// Again counts calls of a handler with an attempt that was called before, Twice messages that
	// ended twice. The faults explain both, except what Problems has.
	Again, Twice int
	// Late counts how often the broker took deliveries back after its consumer timeout.
	Late     int
	Problems []string
}

// run is one month.
type run struct {
	Config
	cluster             *testbroker.Cluster
	publishing, consume *testbroker.Proxy
	shop                *shop
	ledger              *ledger
}

// Run runs the month. An error means that it could not be run.
func Run(ctx context.Context, c Config) (report Report, err error) {
	clock.Compress(Speed)
	cluster, err := testbroker.StartCluster(ctx, c.Nodes, testbroker.WithAdvancedConfig(fmt.Sprintf(
		"[{rabbit, [{consumer_timeout, %d}, {channel_tick_interval, %d}, "+
			"{dead_letter_worker_publisher_confirm_timeout, 20000}]}].",
		consumerTimeout.Milliseconds(), consumerTimeout.Milliseconds()/8)))
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	r := &run{Config: c, cluster: cluster, ledger: newLedger()}
	for _, p := range []**testbroker.Proxy{&r.publishing, &r.consume} {
		if *p, err = testbroker.OpenProxy(cluster.Node(0).URL()); err != nil {
			return report, err
		}
		defer (*p).Close()
	}
	r.publishing.Tap(func(testbroker.Seen) testbroker.Fault { return testbroker.Fault{} })
	if r.shop, err = openShop(ctx, r); err != nil {
		return report, err
	}
	report.Version = cluster.Node(0).Version()
	began := time.Now()
	fmt.Fprintf(c.Out, "RabbitMQ %s, %d nodes, %d days, %d times faster\n", report.Version, c.Nodes,
		c.Days, Speed)
	err = r.live(ctx)
	r.ledger.verdict(&report)
	report.tooLate(c.Days)
	report.Took = time.Since(began)
	fmt.Fprintf(c.Out, "%d messages: %d handled, %d dead letters, %d lost; %d calls again, %d ended "+
		"twice, %d consumer timeouts; %.0f s\n", report.Messages, report.Handled, report.Dead,
		report.Lost, report.Again, report.Twice, report.Late, report.Took.Seconds())
	return report, err
}

// tooLate finds a library that holds deliveries for too long. A busy machine may be too slow for
// the consumer timeout of each replica once a week.
func (r *Report) tooLate(days int) {
	if most := replicas * ((days + 6) / 7); r.Late > most {
		r.Problems = append(r.Problems, fmt.Sprintf(
			"the consumer timeout has struck %d times, more than %d times", r.Late, most))
	}
}

// live runs all days, and waits until every message has ended and nothing is left.
func (r *run) live(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, r.shop.close()) }()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	producing, noMore := context.WithCancel(ctx)
	errs := make(chan error, 2)
	var others sync.WaitGroup
	defer others.Wait()
	defer stop()
	made := make(chan struct{})
	url := r.cluster.Node(0).URL()
	others.Go(func() {
		defer close(made)
		errs <- r.ledger.produce(producing, url)
	})
	others.Go(func() { errs <- r.ledger.bury(ctx, url) })

	for day := 1; day <= r.Days; day++ {
		if err := r.day(ctx, day); err != nil {
			noMore()
			return fmt.Errorf("day %d: %w", day, err)
		}
	}
	noMore()
	<-made
	if err := r.end(ctx); err != nil {
		return err
	}
	stop()
	return errors.Join(<-errs, <-errs)
}

// day is one day: traffic, an event, more traffic, and the deployment of the night.
func (r *run) day(ctx context.Context, day int) error {
	if err := sleep(ctx, trafficOfADay); err != nil {
		return err
	}
	event := r.eventOf(day)
	began := time.Now()
	if err := event.happen(ctx, r); err != nil {
		return fmt.Errorf("%s: %w", event.name, err)
	}
	took := time.Since(began)
	r.ledger.strike(struck{event, began, time.Now().Add(settling)})
	if err := sleep(ctx, trafficOfADay); err != nil {
		return err
	}
	night := time.Now()
	if err := r.shop.deploy(ctx); err != nil {
		return fmt.Errorf("deployment: %w", err)
	}
	sent, ended := r.ledger.counts()
	fmt.Fprintf(r.Out, "day %2d  %-52s %5.1f s, deployment %4.1f s  %5d confirmed %5d ended\n",
		day, event.name, took.Seconds(), time.Since(night).Seconds(), sent, ended)
	return nil
}

// end waits until all messages have ended, and until no copy is left that could end again.
func (r *run) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drained)
	defer cancel()
	for {
		if sent, ended := r.ledger.counts(); ended >= sent {
			out, err := r.cluster.Node(0).RunCtl(ctx, "list_queues", "--no-table-headers", "name",
				"messages")
			if err != nil || nothingIn(out) {
				return err
			}
		}
		if sleep(ctx, 200*time.Millisecond) != nil {
			return nil // the verdict names the messages that have not ended
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
