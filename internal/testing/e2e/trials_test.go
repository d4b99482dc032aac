package e2e_test

import (
	"fmt"
	"sync"
)

// trialsAtOnce is how many services run at a time: they wait on the broker
// rather than on the processor.
const trialsAtOnce = 24

// trials run one service after another on each of a few sets of queues, for a
// broker takes its time to declare quorum queues by the hundred.
type trials struct {
	url    string
	queues chan string
}

func newTrials(url string) *trials {
	tr := &trials{url: url, queues: make(chan string, trialsAtOnce)}
	for i := range cap(tr.queues) {
		tr.queues <- fmt.Sprintf("orders-%d", i)
	}
	return tr
}

// all calls f for each i with a queue that nobody else uses meanwhile, and
// returns when all have returned. Subtests made in f run at once.
func (tr *trials) all(n int, f func(i int, queue string)) {
	var wg sync.WaitGroup
	for i := range n {
		queue := <-tr.queues
		wg.Go(func() {
			defer func() { tr.queues <- queue }()
			f(i, queue)
		})
	}
	wg.Wait()
}
