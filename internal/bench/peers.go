package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"
)

// The work of the peers: jobs of 1 KiB, of which some fail once.
const (
	peerJobs     = 10_000
	peerDelay    = 2 * time.Second
	peerPatience = 90 * time.Second
	wholeRetry   = "a retry: µs"
)

// peer is a system that tries jobs again. Each turn begins with an empty server.
type peer struct {
	name  string
	start func(context.Context, *bench) (*peerServer, error)
	// fill enqueues jobs, each batch when the sequence yields it.
	fill func(ctx context.Context, url string, batches iter.Seq2[int, int]) error
	// work begins to handle jobs, until the process ends.
	work workFunc
}

type workFunc func(ctx context.Context, url string, atOnce int, handle func(job int) error) error

// peers measures how other systems do the same work: first with a backlog, then few jobs at a time,
// and at last while a worker is killed.
func (b *bench) peers(ctx context.Context) (results []result, err error) {
	for _, c := range []struct {
		group  string
		rounds int
		turn   func(context.Context, peer, *peerServer) (values, error)
	}{
		{"peers, 64 at once", b.rounds, backlog(64)},
		{"peers, 8 at once", b.rounds, backlog(8)},
		{"peers, no backlog", b.rounds, trickle},
		{"peers, kill -9", 1, killed},
	} {
		held := contest{group: c.group, rounds: c.rounds}
		for _, p := range allPeers {
			held.entries = append(held.entries, entry{p.name, func(ctx context.Context) (values, error) {
				s, err := p.start(ctx, b)
				if err != nil {
					return nil, err
				}
				measured, err := c.turn(ctx, p, s)
				return measured, errors.Join(err, s.end())
			}})
		}
		more, err := held.hold(ctx, b)
		if results = append(results, more...); err != nil {
			return results, err
		}
	}
	return results, nil
}

// batches yields the first number and the size of batches of jobs, with a pause before each.
func batches(jobs, size int, pause time.Duration) iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		for i := 0; i < jobs; i += size {
			if time.Sleep(pause); !yield(i, size) {
				return
			}
		}
	}
}

// backlog measures a worker that finds all jobs in the queue.
func backlog(atOnce int) func(context.Context, peer, *peerServer) (values, error) {
	return func(ctx context.Context, p peer, s *peerServer) (values, error) {
		all, err := values{}, error(nil)
		for _, percent := range []int{0, 10, 100} {
			err = errors.Join(err, p.emptied(ctx, s, atOnce, percent, all))
		}
		all[wholeRetry] = all["100 %: client µs"] + all["100 %: server µs"] -
			all["0 %: client µs"] - all["0 %: server µs"]
		return all, err
	}
}

func (p peer) emptied(ctx context.Context, s *peerServer, atOnce, percent int, into values) error {
	if err := p.fill(ctx, s.url, batches(peerJobs, 500, 0)); err != nil {
		return err
	}
	w, err := p.worker(ctx, s, atOnce, percent)
	if err != nil {
		return err
	}
	defer w.end()
	client, server := processorTime(w.pid()), processorTime(s.processes()...)
	j := journal{failed: map[int]time.Time{}, done: map[int]time.Time{}}
	if err := j.read(w, peerJobs); err != nil {
		return err
	}
	client, server = processorTime(w.pid())-client, processorTime(s.processes()...)-server
	of := func(metric string) string { return fmt.Sprintf("%d %%: %s", percent, metric) }
	into[of("jobs/s")] = peerJobs / j.last.Sub(j.first).Seconds()
	into[of("client µs")] = float64(client.Microseconds()) / peerJobs
	into[of("server µs")] = float64(server.Microseconds()) / peerJobs
	into["client MiB"] = max(into["client MiB"], memory("status", "VmHWM:", w.pid()))
	into["server MiB"] = max(into["server MiB"], memory("smaps_rollup", "Pss:", s.processes()...))
	return nil
}

// trickle measures how late jobs come again while few are on their way. All fail once.
func trickle(ctx context.Context, p peer, s *peerServer) (values, error) {
	w, err := p.worker(ctx, s, 8, 100)
	if err != nil {
		return nil, err
	}
	defer w.end()
	time.Sleep(time.Second) // it makes its tables, which fill would make, too
	filled := make(chan error, 1)
	go func() { filled <- p.fill(ctx, s.url, batches(lateMessages, 1, latePause)) }()
	j := journal{failed: map[int]time.Time{}, done: map[int]time.Time{}}
	if err := errors.Join(j.read(w, lateMessages), <-filled); err != nil {
		return nil, err
	}
	var lates []float64
	for job, failed := range j.failed {
		lates = append(lates, (j.done[job].Sub(failed)-peerDelay).Seconds()*1000)
	}
	slices.Sort(lates)
	return values{p50: lates[len(lates)/2], p99: lates[len(lates)*99/100]}, nil
}

// killed ends a worker with SIGKILL when it has done 40 % of the jobs, and starts another one.
func killed(ctx context.Context, p peer, s *peerServer) (values, error) {
	if err := p.fill(ctx, s.url, batches(peerJobs, 500, 0)); err != nil {
		return nil, err
	}
	j := journal{failed: map[int]time.Time{}, done: map[int]time.Time{}}
	first, err := p.worker(ctx, s, 64, 10)
	if err != nil {
		return nil, err
	}
	defer first.end()
	if err := j.read(first, peerJobs*2/5); err != nil {
		return nil, err
	}
	first.kill()
	killed := time.Now()
	_ = j.read(first, peerJobs) // what it had told before its end
	second, err := p.worker(ctx, s, 64, 10)
	if err != nil {
		return nil, err
	}
	defer second.end()
	if err := j.read(second, peerJobs); j.last.Before(killed) {
		return nil, fmt.Errorf("nothing was done after the kill: %w", err)
	}
	return values{
		"s until the last": j.last.Sub(killed).Seconds(), "handled twice": float64(j.twice),
		fmt.Sprintf("left after %v", peerPatience): float64(peerJobs - len(j.done)),
	}, nil
}

// worker is a process of its own: a client's time and memory can be told from the bench's.
type worker struct {
	cmd  *exec.Cmd
	news *bufio.Scanner
}

func (w *worker) pid() int { return w.cmd.Process.Pid }

func (w *worker) kill() { _ = w.cmd.Process.Kill() }

func (w *worker) end() {
	w.kill()
	_ = w.cmd.Wait()
}

// worker starts a worker and returns when it works.
func (p peer) worker(ctx context.Context, s *peerServer, atOnce, percent int) (*worker, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-peer", p.name, s.url, strconv.Itoa(atOnce),
		strconv.Itoa(percent))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err = errors.Join(err, cmd.Start()); err != nil {
		return nil, err
	}
	w := &worker{cmd, bufio.NewScanner(out)}
	if !w.news.Scan() {
		return nil, fmt.Errorf("a worker did not start: %w", cmd.Wait())
	}
	return w, nil
}

// telling is the news of a worker about a job.
type telling struct {
	Job    int
	Failed bool
	At     time.Time
}

// beWorker is the process of a worker: it handles jobs and tells of each on out.
func beWorker(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 4 {
		return errors.New("-peer is for the workers that bench starts")
	}
	i := slices.IndexFunc(allPeers, func(p peer) bool { return p.name == args[0] })
	atOnce, _ := strconv.Atoi(args[2])
	percent, _ := strconv.Atoi(args[3])
	var mu sync.Mutex
	failed, news := map[int]bool{}, json.NewEncoder(out)
	_, _ = fmt.Fprintln(out, "works")
	err := allPeers[i].work(ctx, args[1], atOnce, func(job int) error {
		mu.Lock()
		defer mu.Unlock()
		fails := job%100 < percent && !failed[job]
		failed[job] = true
		if err := news.Encode(telling{job, fails, time.Now()}); err != nil {
			return err
		}
		if fails {
			return errFailed
		}
		return nil
	})
	if err == nil {
		<-ctx.Done()
	}
	return err
}

// journal is what workers have told.
type journal struct {
	first, last  time.Time
	failed, done map[int]time.Time
	twice        int
}

// read reads until n jobs are done, or the worker has ended, or has no news for a while.
func (j *journal) read(w *worker, n int) error {
	silent := time.AfterFunc(peerPatience, w.kill)
	defer silent.Stop()
	for len(j.done) < n && w.news.Scan() {
		silent.Reset(peerPatience)
		var t telling
		if err := json.Unmarshal(w.news.Bytes(), &t); err != nil {
			return fmt.Errorf("a worker said %q: %w", w.news.Text(), err)
		}
		if j.first.IsZero() {
			j.first = t.At
		}
		if _, ok := j.done[t.Job]; ok {
			j.twice++
		} else if t.Failed {
			j.failed[t.Job] = t.At
		} else {
			j.done[t.Job], j.last = t.At, t.At
		}
	}
	if len(j.done) < n {
		return fmt.Errorf("%d of %d jobs are done", len(j.done), n)
	}
	return nil
}
