package random

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/operate"
)

// settle waits until every message has ended and nothing moves any more, or until nothing has moved
// for the broker's Patience and no queue holds messages. It returns the dead letters. The judge
// finds the missing messages.
func (r *run) settle(ctx context.Context) (letters []operate.Letter, err error) {
	// The repair of deleted parts, as by an operator.
	if err := r.operator.Declare(ctx, r.plan); err != nil {
		return nil, err
	}
	for end := time.Now().Add(limit); ; {
		if letters, err = r.letters(ctx); err != nil {
			return nil, err
		}
		waiting, err := r.moving(ctx)
		if err != nil {
			return nil, err
		}
		quiet := waiting == 0 && (r.record.still(r.broker.Patience) ||
			r.open(letters) == 0 && r.record.still(stillness))
		if quiet || time.Now().After(end) || ctx.Err() != nil {
			break
		}
		rest(ctx, 30*time.Millisecond)
	}
	if r.open(letters) == 0 || ctx.Err() != nil {
		return letters, ctx.Err()
	}
	if r.held, err = r.awaitHeld(ctx); err != nil {
		return nil, err
	}
	return r.letters(ctx)
}

// stillness is the time without a call after which no further copy is expected.
const stillness = 400 * time.Millisecond

// moving counts the ready messages outside the dead-letter queue. It returns stranded ones, as an
// operator does.
func (r *run) moving(ctx context.Context) (total int, err error) {
	total, err = r.depth(r.queue)
	for _, q := range r.plan.Queues {
		if err != nil {
			return 0, err
		}
		if q.Name == r.plan.Dead.RoutingKey {
			continue
		}
		var n int
		n, err = r.depth(q.Name)
		total += n
		if err == nil && n > 0 && q.Delay == 0 {
			_, err = r.operator.ReturnStranded(ctx, q.Name, operate.ReturnOptions{})
		}
	}
	return total, err
}

// letters returns the dead letters. A node that has just started may not answer at once: a queue
// without a leader is an error 541.
func (r *run) letters(ctx context.Context) (found []operate.Letter, err error) {
	for end := time.Now().Add(startLimit); ; rest(ctx, 200*time.Millisecond) {
		if found, err = r.look(ctx); err == nil || ctx.Err() != nil || time.Now().After(end) {
			return found, err
		}
	}
}

func (r *run) look(ctx context.Context) (found []operate.Letter, err error) {
	for l, err := range r.operator.Dead(ctx, r.plan, operate.Filter{}, 0) {
		if err != nil {
			return nil, err
		}
		found = append(found, l)
	}
	return found, nil
}

// open counts the messages that have not ended.
func (r *run) open(letters []operate.Letter) (n int) {
	dead := count(letters)
	for i := range r.program.Messages {
		if !r.record.isHandled(i) && dead[i] == 0 && r.record.isDiscarded(i) == 0 {
			n++
		}
	}
	return n
}

// count counts the dead letters of each message.
func count(letters []operate.Letter) map[int]int {
	times := map[int]int{}
	for _, l := range letters {
		if n, err := strconv.Atoi(l.ID); err == nil {
			times[n]++
		}
	}
	return times
}

// discard records letters that a command throws away.
func (r *record) discard(letters []operate.Letter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n, times := range count(letters) {
		r.discarded[n] += times
	}
}

func (r *record) isDiscarded(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.discarded[n]
}

// cancel notes that messages may end before their course does.
func (r *record) cancel() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cancelled = true
}

// verdict has the broken promises, the number of calls that the steps explain, and the number of
// copies that the broker sent twice before a classic queue.
type verdict struct {
	err             error
	extra, byBroker int
}

// judge compares the observations with the promises.
func judge(r *run, letters []operate.Letter) (v verdict) {
	r.record.mu.Lock()
	defer r.record.mu.Unlock()
	j := judging{run: r, record: r.record, dead: count(letters)}
	for _, l := range letters {
		j.letter(l)
	}
	for n := range r.program.Messages {
		j.factor = 1 << r.doubled
		if r.program.Classic { // a slow classic queue may get a copy once more for each timer (F41)
			j.factor <<= r.record.again[n]
			v.byBroker += r.record.again[n]
		}
		v.extra += j.attempts(n)
		j.end(n)
	}
	for _, strange := range r.record.strange {
		j.broken("%s", strange)
	}
	v.err = errors.Join(j.problems...)
	return v
}

type judging struct {
	*run
	record   *record
	dead     map[int]int
	factor   int // how many copies of a message the steps explain
	problems []error
}

func (j *judging) broken(format string, args ...any) {
	j.problems = append(j.problems, fmt.Errorf(format, args...))
}

// certain reports whether the course of a message decides how it ends.
func (j *judging) certain() bool { return !j.record.healed && !j.record.cancelled }

// attempts checks the calls of a message, and returns the number of explained ones.
func (j *judging) attempts(n int) (extra int) {
	f := j.record.fates[n]
	last, _ := f.end(j.program.Retries)
	for attempt, times := range j.record.calls[n] {
		snoozes, _ := f.of(attempt)
		switch most := j.factor * (1 + snoozes); {
		case attempt > j.program.Retries+1:
			j.broken("message %d: attempt %d is beyond the policy's %d", n, attempt, j.program.Retries+1)
		case attempt > last:
			j.broken("message %d: attempt %d, but attempt %d ends it", n, attempt, last)
		case times > most:
			j.broken("message %d: attempt %d ran %d times; the steps explain %d", n, attempt, times, most)
		default:
			extra += max(0, times-1-snoozes)
		}
	}
	for attempt := 1; attempt <= last && j.certain(); attempt++ {
		if j.record.calls[n][attempt] == 0 && j.killed == 0 {
			j.broken("message %d: attempt %d has no call", n, attempt)
		}
	}
	return extra
}

// letter checks a dead letter.
func (j *judging) letter(l operate.Letter) {
	n, err := strconv.Atoi(l.ID)
	if err != nil || n >= len(j.record.fates) {
		j.broken("a dead letter with the id %q", l.ID)
		return
	}
	_, want := j.record.fates[n].end(j.program.Retries)
	switch {
	case l.Reason == header.ReasonCancelled && j.record.cancelled:
	case l.Reason == header.ReasonCrashLoop && j.killed > 1:
	case want == "":
		j.broken("message %d is a dead letter (%s), but it must be handled", n, l.Reason)
	case l.Reason != want:
		j.broken("message %d is a dead letter for the reason %q, not %q", n, l.Reason, want)
	}
}

// end checks how often a message has ended, and that it has.
func (j *judging) end(n int) {
	handled, dead, discarded := j.record.handled[n], j.dead[n], j.record.discarded[n]
	_, reason := j.record.fates[n].end(j.program.Retries)
	switch all := handled + dead + discarded; {
	case all == 0 && len(j.held) > 0:
		j.broken("message %d has not ended after %s; the broker holds messages: %q", n, heldLimit, j.held)
	case all == 0:
		j.broken("message %d is LOST: no handler has finished it, and it is no dead letter", n)
	case all > j.factor:
		j.broken("message %d ended %d times (handled %d, dead %d, discarded %d); the steps explain %d",
			n, all, handled, dead, discarded, j.factor)
	case reason != "" && handled > 0 && j.certain():
		j.broken("message %d was handled, but it must be a dead letter: %s", n, reason)
	}
}
