package random

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// heldLimit bounds the wait for messages that the broker holds. After a fault they came up to
// 222 s late (F23).
const heldLimit = 4 * time.Minute

// awaitHeld waits until the broker has no message of the program outside the dead-letter queue, and
// returns the queues that still have some after heldLimit. AMQP counts ready messages only. A
// message may also be with a service that cannot hand it over, or held by an at-least-once wait
// queue (F5), so a missing message is lost only when no queue has messages.
func (r *run) awaitHeld(ctx context.Context) (holding []string, err error) {
	for end := time.Now().Add(heldLimit); ; rest(ctx, time.Second) {
		if holding, err = r.holding(ctx); err != nil || ctx.Err() != nil {
			return nil, err
		}
		letters, err := r.letters(ctx)
		if err != nil {
			return nil, err
		}
		// The counts are seconds late (F5), so an empty broker must also be still.
		empty := len(holding) == 0 && r.record.still(r.broker.Patience)
		if empty || r.open(letters) == 0 && r.record.still(stillness) || time.Now().After(end) {
			return holding, nil
		}
	}
}

// holding returns the queues of the program that may have messages, without the dead-letter queue.
// A queue that does not run shows none, but may have some (F47).
func (r *run) holding(ctx context.Context) (queues []string, err error) {
	out, err := r.broker.Node(0).RunCtl(ctx, "list_queues", "--no-table-headers",
		"name", "state", "messages")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		var name, state string
		var count int
		if _, err := fmt.Sscan(line, &name, &state, &count); err != nil {
			return nil, fmt.Errorf("a line of list_queues: %q: %w", line, err)
		}
		mine := strings.HasPrefix(name, r.queue) && name != r.plan.Dead.RoutingKey
		if mine && (count > 0 || state != "running") {
			queues = append(queues, fmt.Sprintf("%s (%s, %d messages)", name, state, count))
		}
	}
	return queues, nil
}

// deadLettering tells whether every at-least-once queue has a worker that has begun.
const deadLettering = `
	Queues = [Q || Q <- rabbit_amqqueue:list(),
		lists:keymember(<<"x-dead-letter-strategy">>, 1, amqqueue:get_arguments(Q))],
	Workers = [sys:get_state(P) || {_, P, _, _} <- supervisor:which_children(rabbit_fifo_dlx_sup)],
	length(Workers) >= length(Queues).`

// awaitDeadLettering waits until the broker dead-letters after a start. A queue that is deleted
// earlier can end all dead-lettering of the node until the next start (F47).
func (b Broker) awaitDeadLettering(ctx context.Context) error {
	var out string
	var err error
	for end := time.Now().Add(startLimit); time.Now().Before(end); rest(ctx, 200*time.Millisecond) {
		// An error may come from a worker that ends between the two looks.
		if out, err = b.Node(0).RunCtl(ctx, "eval", deadLettering); err == nil &&
			strings.TrimSpace(out) == "true" {
			return nil
		}
	}
	return errors.Join(fmt.Errorf("the node does not dead-letter: %q", out), err)
}
