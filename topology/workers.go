package topology

import "sync/atomic"

// maxIdle is how many goroutines a subscription keeps for the next deliveries.
const maxIdle = 16

// task is a delivery to process.
type task struct {
	from *consumer
	arrival
}

// workers are goroutines that process deliveries, one at a time each. They are kept
// for a while, for a new one would have to grow its stack first.
type workers struct {
	work  func(t task, idle func())
	tasks chan task
	over  chan struct{}
	idle  atomic.Int32 // workers that receive, or are about to
}

func newWorkers(work func(t task, idle func())) *workers {
	return &workers{work: work, tasks: make(chan task), over: make(chan struct{})}
}

// give has t processed by a worker. Only one goroutine calls it.
func (w *workers) give(t task) {
	if w.idle.Load() > 0 {
		w.idle.Add(-1)
		w.tasks <- t
		return
	}
	go w.run(t)
}

// end lets the idle workers go. No task is given any more.
func (w *workers) end() { close(w.over) }

func (w *workers) run(t task) {
	for {
		stay := false
		w.work(t, func() {
			if stay = w.idle.Load() < maxIdle; stay {
				w.idle.Add(1)
			}
		})
		if !stay {
			return
		}
		select {
		case t = <-w.tasks:
		case <-w.over:
			return
		}
	}
}
