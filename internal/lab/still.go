package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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
	moved := map[string]time.Time{} // by queue
	for rest(ctx, time.Second) {
		for _, l := range r.lines {
			ready := 0
			err := r.nemesis.admin(func(ch *amqp.Channel) error {
				q, err := ch.QueueDeclarePassive(l.queue, true, false, false, false, nil)
				ready = q.Messages
				return err
			})
			r.mu.Lock()
			free, began := r.history.free(l.name, r.fleet.running()[:r.Instances]), r.history.began[l.name]
			r.mu.Unlock()
			if err != nil || ready == 0 || !free {
				moved[l.queue] = time.Now()
			}
			moved[l.queue] = latest(moved[l.queue], began, r.nemesis.quietSince())
			if stands := time.Since(moved[l.queue]); stands > r.Bound {
				moved[l.queue] = time.Now()
				text := fmt.Sprintf("%s: %d ready messages, nothing began for %s", l.queue, ready,
					stands.Round(time.Millisecond))
				r.say("STANDS STILL: %s", text)
				r.note(event{Kind: stood, Text: text})
				r.dump(ctx)
			}
		}
	}
}

// dump writes all that says why nothing moves: the goroutines of the instances, their open
// hand-overs as the wire shows them, and the broker's view.
func (r *run) dump(ctx context.Context) {
	_ = r.fleet.signal("", syscall.SIGUSR1)
	text := "publishes that are not confirmed:\n" + strings.Join(r.witness.open(), "\n") + "\n"
	for _, question := range []string{
		"list_queues name messages messages_ready messages_unacknowledged consumers leader online",
		"list_consumers",
		"list_channels connection number consumer_count messages_unacknowledged " +
			"messages_unconfirmed prefetch_count state",
	} {
		out, err := r.cluster.Node(0).RunCtl(ctx, strings.Fields(question)...)
		if err != nil {
			out = err.Error()
		}
		lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(out), "\n"),
			func(line string) bool { return strings.HasPrefix(line, crowdName) })
		text += "\nrabbitmqctl " + question + ":\n" + strings.Join(lines, "\n") + "\n"
	}
	name := filepath.Join(r.dir, "standing-"+time.Now().Format("150405"))
	r.say("%s\nproblems: %v", text, os.WriteFile(name, []byte(text), 0o600))
}
