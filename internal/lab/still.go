package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// nothingStandsStill: while the broker works and a handler is free, no ready message waits longer
// than the bound. The watch of the run has looked at the queues.
func nothingStandsStill(h *history, r *report) {
	var all []string
	for _, e := range h.events {
		if e.Kind == stood {
			all = append(all, e.Text)
		}
	}
	r.row("standing still", "%d; the bound is %s", len(all), h.Bound)
	r.problem("times ready messages stood still", all...)
}

// watch looks at the source queues once a second. A queue stands still if it has ready messages at
// each look for the bound, no fault is in force, a handler is free, and no handling of its messages
// begins.
func (r *run) watch(ctx context.Context) {
	since := map[string]time.Time{}
	for rest(ctx, time.Second) {
		for _, l := range r.lines {
			ready, err := r.ready(l.queue)
			moves := err != nil || ready == 0 || !r.nemesis.quiet() || !r.freeHandler(l.name)
			r.mu.Lock()
			last := r.seen.lastBegin[l.name]
			r.mu.Unlock()
			r.nemesis.mu.Lock()
			calm := r.nemesis.calm
			r.nemesis.mu.Unlock()
			if moves {
				since[l.queue] = time.Now()
			}
			stands := time.Since(latest(since[l.queue], last, calm))
			if stands < r.Bound {
				continue
			}
			since[l.queue] = time.Now()
			text := fmt.Sprintf("%s: %d ready messages, nothing began for %s", l.queue, ready,
				stands.Round(time.Millisecond))
			r.say("STANDS STILL: %s", text)
			if err := r.log.append(event{Kind: stood, Text: text}); err != nil {
				r.say("%v", err)
			}
			r.dump(ctx)
		}
	}
}

// ready returns the number of ready messages of a queue.
func (r *run) ready(queue string) (ready int, err error) {
	err = r.nemesis.admin(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		ready = q.Messages
		return err
	})
	return ready, err
}

// freeHandler reports whether an instance that consumes the line has a free handler. With a single
// active consumer that is the instance that began last.
func (r *run) freeHandler(line string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	busy := r.seen.handling[line]
	for i, name := range r.fleet.running() {
		if i < r.Instances && name != "" && busy[name] < r.Handlers*r.Concurrency &&
			(line != keyStrategy || name == r.seen.active) {
			return true
		}
	}
	return false
}

// dump writes all that says why nothing moves: the goroutines of the instances, their open
// hand-overs as the wire shows them, and the broker's view.
func (r *run) dump(ctx context.Context) {
	r.fleet.all(dumpSignal)
	text := "publishes that are not confirmed:\n" + strings.Join(r.witness.open(), "\n") + "\n"
	for _, question := range [][]string{
		{
			"list_queues", "name", "messages", "messages_ready", "messages_unacknowledged", "consumers",
			"leader", "online",
		},
		{"list_consumers"},
		{
			"list_channels", "connection", "number", "consumer_count", "messages_unacknowledged",
			"messages_unconfirmed", "prefetch_count", "state",
		},
	} {
		out, err := r.cluster.Node(0).RunCtl(ctx, question...)
		if err != nil {
			out = err.Error()
		}
		lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(out), "\n"),
			func(line string) bool { return strings.HasPrefix(line, crowdName) })
		text += "\nrabbitmqctl " + strings.Join(question, " ") + ":\n" + strings.Join(lines, "\n") + "\n"
	}
	name := filepath.Join(r.dir, "standing-"+time.Now().Format("150405"))
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		r.say("%v", err)
	}
	r.say("%s", text)
}

// explain prints the events of the first messages with a problem, and what the instances lost.
func (r *run) explain(rep *report) {
	const shown = 5
	since := func(e event) time.Duration { return e.At.Sub(r.started).Round(time.Millisecond) }
	for i, m := range rep.suspects {
		if i == shown {
			break
		}
		for _, e := range r.events {
			if e.id == m {
				r.say("message %s: %s at %s by %s, attempt %d, %s %s redelivered %t, aside %t, copy %q",
					m, e.Kind, since(e), e.Who, e.Attempt, e.Outcome, e.Text, e.Redelivered, e.Aside, e.Copy)
			}
		}
	}
	for _, e := range r.events {
		if len(rep.suspects) > 0 && (e.Kind == lost || e.Kind == gone) {
			r.say("%s: %s %s at %s, by itself %t", e.Who, e.Kind, e.Text, since(e), e.Own)
		}
	}
}
