package random

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// fate is the course of a message, by attempt: index 0 is the first.
type fate struct {
	// snoozes counts the snoozes before each attempt's result.
	snoozes []int
	results []Outcome
}

// course returns the fate that the outcomes of a message's calls describe.
func course(outcomes []Outcome) fate {
	f := fate{snoozes: []int{0}}
	for _, o := range outcomes {
		if o == Snooze {
			f.snoozes[len(f.results)]++
			continue
		}
		f.results = append(f.results, o)
		f.snoozes = append(f.snoozes, 0)
	}
	f.results = append(f.results, Succeed)
	return f
}

// of returns the result of an attempt, and the snoozes before it.
func (f fate) of(attempt int) (snoozes int, result Outcome) {
	if attempt > len(f.results) {
		return 0, Succeed
	}
	return f.snoozes[attempt-1], f.results[attempt-1]
}

// end returns the last attempt of a message under so many retries, and its reason if it dies there.
func (f fate) end(retries int) (attempt int, dead header.Reason) {
	for attempt = 1; ; attempt++ {
		switch _, result := f.of(attempt); {
		case result == Succeed:
			return attempt, ""
		case result == Permanent:
			return attempt, header.ReasonPermanent
		case attempt > retries:
			return attempt, header.ReasonExhausted
		}
	}
}

// record has all calls of the handler.
type record struct {
	mu    sync.Mutex
	fates []fate
	calls []map[int]int // of each message, by attempt
	// nonces has the publishes whose copies were seen. The broker sent a copy twice if it comes again
	// without the mark of a redelivery; again counts these, by message.
	nonces  map[string]bool
	again   map[int]int
	snoozed []map[int]int
	handled []int // successes of each message
	// discarded counts the dead letters of each message that a command threw away.
	discarded map[int]int
	running   int
	ended     int
	last      time.Time // the last begin or end of a call
	healed    bool      // every call succeeds
	// cancelled is true if a command may have ended a message's course.
	cancelled bool
	blocked   chan struct{}
	strange   []string
}

func newRecord(p Program) *record {
	r := &record{
		last: time.Now(), handled: make([]int, len(p.Messages)), discarded: map[int]int{},
		nonces: map[string]bool{}, again: map[int]int{},
	}
	for _, outcomes := range p.Messages {
		r.fates = append(r.fates, course(outcomes))
		r.calls = append(r.calls, map[int]int{})
		r.snoozed = append(r.snoozed, map[int]int{})
	}
	return r
}

var (
	errFailed  = errors.New("this attempt fails")
	errRefused = errors.New("this message is refused")
)

const (
	later    = 150 * time.Millisecond
	nap      = 100 * time.Millisecond
	hangsFor = 300 * time.Millisecond
)

// call is the handler.
func (r *record) call(msg *message.Message) error {
	result := r.begin(msg)
	if result == Hang {
		time.Sleep(hangsFor)
	}
	r.mu.Lock()
	r.running--
	r.ended++
	r.last = time.Now()
	r.mu.Unlock()
	switch result {
	case Succeed:
		return nil
	case Snooze:
		return middleware.Snooze(errFailed, nap)
	case RetryLater:
		return middleware.RetryAfter(errFailed, later)
	case Permanent:
		return middleware.Permanent(errRefused)
	case Panic:
		panic(errFailed)
	}
	return errFailed
}

// begin records a call, and returns its result.
func (r *record) begin(msg *message.Message) Outcome {
	r.mu.Lock()
	blocked := r.blocked
	r.mu.Unlock()
	if blocked != nil {
		select {
		case <-blocked:
		case <-msg.Context().Done():
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running++
	r.last = time.Now()
	raw, _ := topology.Received(msg.Context())
	n, err := strconv.Atoi(raw.MessageId)
	attempt := middleware.Attempt(msg.Context())
	if err != nil || n < 0 || n >= len(r.fates) {
		r.strange = append(r.strange, fmt.Sprintf("a message with the id %q", raw.MessageId))
		return Succeed
	}
	r.calls[n][attempt]++
	if nonce, ok := raw.Headers[header.Publish].(string); ok {
		if r.nonces[nonce] && !raw.Redelivered {
			r.again[n]++
		}
		r.nonces[nonce] = true
	}
	snoozes, result := r.fates[n].of(attempt)
	switch {
	case r.healed:
		result = Succeed
	case r.snoozed[n][attempt] < snoozes:
		r.snoozed[n][attempt]++
		return Snooze
	}
	if result == Succeed {
		r.handled[n]++
	}
	return result
}

// block makes calls wait from now on, until the returned function is called.
func (r *record) block() (open func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	blocked := make(chan struct{})
	r.blocked = blocked
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.blocked = nil
		close(blocked)
	}
}

// note records a mistake of the library.
func (r *record) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.strange = append(r.strange, fmt.Sprintf(format, args...))
}

// heal lets every call succeed from now on, as after the repair that comes before a replay.
func (r *record) heal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.healed = true
}

// await waits until so many calls have ended, for limit at the longest.
func (r *record) await(ctx context.Context, calls int, limit time.Duration) {
	for end := time.Now().Add(limit); time.Now().Before(end) && ctx.Err() == nil; {
		r.mu.Lock()
		ended := r.ended
		r.mu.Unlock()
		if ended >= calls {
			return
		}
		rest(ctx, 5*time.Millisecond)
	}
}

// total returns the number of calls.
func (r *record) total() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, calls := range r.calls {
		for _, times := range calls {
			n += times
		}
	}
	return n
}

// still reports whether no call runs, and none has begun or ended for d.
func (r *record) still(d time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running == 0 && time.Since(r.last) > d
}

// isHandled reports whether a message has been handled.
func (r *record) isHandled(n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.handled[n] > 0
}
