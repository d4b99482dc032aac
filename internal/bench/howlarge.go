package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

const (
	wait  = "one wait queue"
	works = "s until it works"
)

// retried is the load of a copy that waits after its second failure: its headers have 400 bytes.
var retried = load{bytes: 1024, headers: 10}

// crash kills a node and starts it again. It returns the seconds until AMQP answers, and until
// queue, which was declared last, confirms a message.
func crash(ctx context.Context, c *testbroker.Cluster, queue string) (values, error) {
	if err := c.Kill(0); err != nil {
		return nil, err
	}
	begun := time.Now()
	if err := c.Start(ctx, 0); err != nil {
		return nil, err
	}
	answered := time.Since(begun).Seconds()
	took, err := untilItWorks(c.Node(0), queue, begun)
	return values{"s until AMQP answers": answered, works: took}, err
}

// untilItWorks returns the seconds until a node confirms a message for the queue.
func untilItWorks(on *testbroker.Node, queue string, begun time.Time) (float64, error) {
	for {
		conn, err := amqp.Dial(on.URL())
		if err == nil {
			// A message that comes before the queue is ready may never be confirmed.
			limit := time.AfterFunc(250*time.Millisecond, func() { _ = conn.Close() })
			err = (&broker{conn: conn}).fill(queue, 0, 1, retried)
			limit.Stop()
			_ = conn.Close()
		}
		if err == nil {
			return time.Since(begun).Seconds(), nil
		}
		if time.Since(begun) > 4*patience {
			return 0, fmt.Errorf("%s does not work after a kill: %w", queue, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// onDisk returns the MiB of all files in a folder.
func onDisk(folder string) (mib float64) {
	_ = fs.WalkDir(os.DirFS(folder), ".", func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir // it is gone by now
		}
		if info, err := entry.Info(); err == nil {
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				mib += float64(stat.Blocks) * 512 / (1 << 20)
			}
		}
		return nil
	})
	return mib
}

// alone starts a node that measures f, which gets a connection after each crash.
func alone(
	ctx context.Context, f func(*testbroker.Cluster, func() (*broker, error)) error,
) error {
	c, err := testbroker.StartCluster(ctx, 1)
	if err != nil {
		return err
	}
	return errors.Join(f(c, func() (*broker, error) {
		conn, err := amqp.Dial(c.Node(0).URL())
		return &broker{node: c.Node(0), conn: conn}, err
	}), c.Close())
}

// crashes is how often a node with waiting messages is killed.
const crashes = 3

// scaleRecovery measures a node on which one wait queue holds ever more messages: the most memory
// while they come and after a crash, the disk, and how long the queue is away when the node is
// killed.
func (b *bench) scaleRecovery(ctx context.Context) (results []result, err error) {
	const queue = "waits"
	err = alone(ctx, func(c *testbroker.Cluster, dial func() (*broker, error)) error {
		there := 0
		for _, n := range []int{500_000, 1_000_000, 2_000_000, 4_000_000} {
			own, err := dial()
			if err != nil {
				return err
			}
			if err := errors.Join(own.declareWait(queue, queue+".none", 12*time.Hour),
				own.fill(queue, 0, n-there, retried)); err != nil {
				return err
			}
			there = n
			most, disk := memory("status", "VmHWM:", own.node.Pid()), onDisk(own.node.Folder())
			var measured values
			var took []float64
			for range crashes {
				if measured, err = crash(ctx, c, queue); err != nil {
					return err
				}
				took = append(took, measured[works])
				most = max(most, memory("status", "VmHWM:", c.Node(0).Pid()))
			}
			measured[works], measured[mib], measured["disk MiB"] = spreadOf(took).median, most, disk
			results = b.add(results, "recovery", n, wait, measured)
		}
		return nil
	})
	return results, err
}

// add prints one measurement of an entry, and appends it to the results.
func (b *bench) add(to []result, group string, x int, entry string, measured values) []result {
	b.say("  %-12s %8d  %-34s %v\n", group, x, entry, measured)
	for metric, value := range measured {
		to = append(to, result{
			Group: group, X: float64(x), Entry: entry, Metric: metric, Samples: []float64{value},
		})
	}
	return to
}

// scaleQueues measures a node with ever more queues, all idle.
func (b *bench) scaleQueues(ctx context.Context) (results []result, err error) {
	for _, kind := range []string{"quorum", "classic"} {
		err = errors.Join(err, alone(ctx,
			func(c *testbroker.Cluster, dial func() (*broker, error)) error {
				there := 0
				for _, n := range []int{500, 1000, 2000, 4000} {
					own, err := dial()
					if err != nil {
						return err
					}
					begun := time.Now()
					if err := own.declareMany(there, n, amqp.Table{"x-queue-type": kind}); err != nil {
						return err
					}
					each := time.Since(begun).Seconds() * 1000 / float64(n-there)
					there = n
					time.Sleep(5 * time.Second) // what the declarations left is done
					resident, used := memory("status", "VmRSS:", own.node.Pid()), processorTime(own.node.Pid())
					time.Sleep(5 * time.Second)
					idle := (processorTime(own.node.Pid()) - used).Seconds() / 5
					measured, err := crash(ctx, c, fmt.Sprint("idle-", n-1))
					if err != nil {
						return err
					}
					measured["ms to declare one"], measured[mib] = each, resident
					measured["% of a processor, idle"] = 100 * idle
					results = b.add(results, "queues", n, kind, measured)
				}
				return nil
			}))
	}
	return results, err
}

// declareMany declares queues on four channels.
func (b *broker) declareMany(from, to int, args amqp.Table) error {
	const channels = 4
	var all sync.WaitGroup
	failed := make([]error, channels)
	for i := range failed {
		all.Go(func() {
			failed[i] = b.do(func(ch *amqp.Channel) (err error) {
				for n := from + i; n < to && err == nil; n += channels {
					_, err = ch.QueueDeclare(fmt.Sprint("idle-", n), true, false, false, false, args)
				}
				return err
			})
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

// scaleNodes lets messages fail on one node, and on three whose quorum queues have three members.
// The processor time is that of the leader's node. At the end of three nodes the leader of a full
// wait queue is killed.
func (b *bench) scaleNodes(ctx context.Context) ([]result, error) {
	return scale([]int{1, 3}, func(n int) ([]result, error) {
		c, err := testbroker.StartCluster(ctx, n)
		if err != nil {
			return nil, err
		}
		conn, err := amqp.Dial(c.Node(0).URL())
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		on := *b
		on.broker = &broker{node: c.Node(0), conn: conn}
		results, err := on.failingWith(ctx, "nodes", float64(n), 8, usual, bothHands)
		if err == nil && n > 1 {
			err = errors.Join(on.broker.declareWait(wait, wait+".none", time.Hour),
				on.broker.fill(wait, 0, 500_000, retried), c.Kill(0))
			begun := time.Now()
			took, failed := untilItWorks(c.Node(1), wait, begun)
			err = errors.Join(err, failed)
			results = b.add(results, "nodes", n, wait, values{"s without its leader": took})
		}
		_ = conn.Close()
		return results, errors.Join(err, c.Close())
	})
}

// workerPrefetches are values of dead_letter_worker_consumer_prefetch: the default, and the one
// that broker-settings.md recommends.
var workerPrefetches = []int{32, 128}

// scaleExpiring measures how fast messages return that expire at once.
func (b *bench) scaleExpiring(ctx context.Context) ([]result, error) {
	return scale([]int{30_000, 60_000, 100_000, 200_000}, func(n int) ([]result, error) {
		c := contest{group: "expiring", x: float64(n), rounds: max(b.rounds, 90_000/n)}
		for _, prefetch := range workerPrefetches {
			c.entries = append(c.entries, entry{
				fmt.Sprint("prefetch ", prefetch),
				func(ctx context.Context) (values, error) { return b.expire(ctx, n, prefetch) },
			})
		}
		return c.hold(ctx, b)
	})
}

func (b *bench) expire(ctx context.Context, n, workerPrefetch int) (values, error) {
	const setting = "application:set_env(rabbit, dead_letter_worker_consumer_prefetch, %d)."
	if _, err := b.broker.node.RunCtl(ctx, "eval", fmt.Sprintf(setting, workerPrefetch)); err != nil {
		return nil, err
	}
	target := b.broker.name("due")
	wait := target + ".wait"
	delay := 4*time.Second + time.Duration(n)*100*time.Microsecond // until all are in
	if err := errors.Join(b.broker.declare(target, quorum),
		b.broker.declareWait(wait, target, delay)); err != nil {
		return nil, err
	}
	var measured values
	err := b.broker.do(func(ch *amqp.Channel) error {
		if err := ch.Qos(256, 0, false); err != nil {
			return err
		}
		due, err := ch.Consume(target, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		if err := b.broker.fill(wait, 0, n, retried); err != nil {
			return err
		}
		used := processorTime(b.broker.node.Pid())
		var first time.Time
		for i := range n {
			d := <-due
			if i == 0 {
				first = time.Now()
			}
			if i%64 == 63 || i == n-1 {
				err = errors.Join(err, d.Ack(true))
			}
		}
		used = processorTime(b.broker.node.Pid()) - used
		each := float64(used.Microseconds()) / float64(n)
		measured = values{rate: float64(n) / time.Since(first).Seconds(), brokers: each}
		return err
	})
	return measured, errors.Join(err, b.broker.delete(target, wait))
}
