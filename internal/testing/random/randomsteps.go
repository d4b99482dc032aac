package random

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// act does a step. It returns false if there was nothing to do it to.
func (r *run) act(ctx context.Context, s Step) (done bool, err error) {
	if s.Do.breaks() {
		r.disturbed = true
		r.doubled += max(0, r.service.generations()-1)
	}
	done, err = true, nil
	switch s.Do {
	case Cut:
		r.service.proxy.Cut()
	case Blackhole:
		r.service.proxy.Blackhole(true)
		rest(ctx, 500*time.Millisecond)
		r.service.proxy.Blackhole(false)
	case DelayConfirms:
		r.service.proxy.HoldConfirms(true)
		rest(ctx, confirmTimeout*3/2)
		r.service.proxy.HoldConfirms(false)
	case KillService:
		r.killed++
		r.service.kill(r.broker.burials)
		r.service, err = r.start(ctx)
	case StopService:
		if r.service.isFailing() {
			r.doubled += r.service.generations()
		}
		if err = r.service.stop(); err == nil {
			r.service, err = r.start(ctx)
		}
	case DeleteQueue:
		done, err = r.deleteQueue(ctx, s.Pick)
	case DeleteExchange:
		if done = len(r.plan.Exchanges) > 0; done {
			name := r.plan.Exchanges[s.Pick%len(r.plan.Exchanges)].Name
			err = r.admin(func(ch *amqp.Channel) error { return ch.ExchangeDelete(name, false, false) })
		}
	case DeleteBinding:
		if done = len(r.plan.Bindings) > 0; done {
			err = r.admin(func(ch *amqp.Channel) error {
				return unbind(ch, r.plan.Bindings[s.Pick%len(r.plan.Bindings)])
			})
		}
	case KillNode:
		done, err = r.killNode(ctx)
	case RestartNode, FreezeNode, MemoryAlarm:
		err = r.node(ctx, s.Do)
	default:
		done, err = r.command(ctx, s.Do)
	}
	if done {
		r.doubled += doublings[s.Do]
	}
	return done, err
}

func unbind(ch *amqp.Channel, b topology.Binding) error {
	if b.ToExchange != "" {
		return ch.ExchangeUnbind(b.ToExchange, b.RoutingKey, b.Exchange, false, nil)
	}
	return ch.QueueUnbind(b.Queue, b.RoutingKey, b.Exchange, nil)
}

// node does a fault of the broker.
func (r *run) node(ctx context.Context, do Action) error {
	switch do {
	case RestartNode:
		return errors.Join(r.broker.Stop(0), r.broker.Start(ctx, 0))
	case FreezeNode:
		err := r.broker.Freeze(0)
		rest(ctx, time.Second)
		return errors.Join(err, r.broker.Thaw(0))
	}
	err := r.broker.Alarm(ctx, 0, true)
	rest(ctx, time.Second)
	return errors.Join(err, r.broker.Alarm(context.WithoutCancel(ctx), 0, false))
}

// fresh is longer than a killed node forgets the messages of a quorum queue that was declared last
// (F48).
const fresh = 1500 * time.Millisecond

// killNode kills the node when its queues are old enough. Of a wait queue that was deleted nothing
// says when a failure declares it again.
func (r *run) killNode(ctx context.Context) (done bool, err error) {
	if r.deleted {
		return false, nil
	}
	rest(ctx, time.Until(r.declared.Add(fresh)))
	return true, errors.Join(r.broker.Kill(0), r.broker.Start(ctx, 0))
}

// deleteQueue deletes a wait queue that is empty by proof: the service has stopped, and every
// message that has not ended is in the source queue. Handlers wait until it is deleted, so the next
// failures find it missing.
func (r *run) deleteQueue(ctx context.Context, pick int) (done bool, err error) {
	if r.disturbed {
		return false, nil
	}
	if err := r.service.stop(); err != nil {
		return false, err
	}
	proved, err := r.allBack(ctx)
	if err != nil {
		return false, err
	}
	open := r.record.block()
	defer open()
	if r.service, err = r.start(ctx); err != nil || !proved {
		return false, err
	}
	var waits []string
	for _, q := range r.plan.Queues {
		if q.Delay > 0 {
			waits = append(waits, q.Name)
		}
	}
	r.deleted = true
	return true, r.admin(func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(waits[pick%len(waits)], false, false, false)
		return err
	})
}

// allBack waits until every message that has not ended is in the source queue.
func (r *run) allBack(ctx context.Context) (bool, error) {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		letters, err := r.letters(ctx)
		if err != nil {
			return false, err
		}
		depth, err := r.depth(r.queue)
		if err != nil {
			return false, err
		}
		if depth == r.open(letters) {
			return true, nil
		}
		rest(ctx, 20*time.Millisecond)
	}
	return false, nil
}

// command does a command of an operator.
func (r *run) command(ctx context.Context, do Action) (done bool, err error) {
	every := operate.Selection{Match: func(operate.Waiter) bool { return true }}
	var progress operate.Progress
	switch do {
	case Release:
		progress, err = r.operator.Release(ctx, r.plan, every)
	case Cancel:
		r.record.cancel()
		progress, err = r.operator.Cancel(ctx, r.plan, every)
	case Replay:
		r.record.heal()
		progress, err = r.operator.Replay(ctx, r.plan, operate.ReplayOptions{})
	case Edit:
		r.record.heal()
		progress, err = r.operator.Replay(ctx, r.plan, operate.ReplayOptions{Edit: repair})
	case Discard:
		progress, err = r.operator.Discard(ctx, r.plan, operate.DiscardOptions{
			Before: func(letters []operate.Letter) error { r.record.discard(letters); return nil },
		})
	case Prune:
		return r.prune(ctx)
	default:
		return false, fmt.Errorf("unknown action %q", do)
	}
	return progress.Done > 0, err
}

// repair edits a dead letter, as an operator does.
func repair(_ operate.Letter, msg *amqp.Publishing) error {
	if msg.Headers == nil {
		msg.Headers = amqp.Table{}
	}
	msg.Headers["repaired"] = "yes"
	return nil
}

// prune declares a plan of an earlier policy, and asks to delete its wait queues. Without a
// management API nothing proves that they are empty, so Prune must refuse.
func (r *run) prune(ctx context.Context) (done bool, err error) {
	earlier := backoff.Constant{Interval: 4567 * time.Millisecond, Retries: 1}
	if r.old, err = topology.PlanFor(r.strategy, r.queue, earlier); err != nil {
		return false, err
	}
	used := map[string]bool{}
	for _, q := range r.plan.Queues {
		used[q.Name] = true
	}
	var unused []string
	for _, q := range r.old.Queues {
		if q.Delay > 0 && !used[q.Name] {
			unused = append(unused, q.Name)
		}
	}
	if len(unused) == 0 { // as with levels, which are the same for all policies
		return false, nil
	}
	if err := r.operator.Declare(ctx, r.old); err != nil {
		return false, err
	}
	r.declared = time.Now()
	pruned, err := r.operator.Prune(ctx, []topology.Plan{r.plan}, operate.PruneOptions{
		Queues: unused, NobodyPublishes: true,
	})
	if !errors.Is(err, operate.ErrUnsafe) {
		r.record.note("Prune without a management API: %v", err)
	}
	for _, p := range pruned {
		if p.Deleted {
			r.record.note("Prune without a management API has deleted %q", p.Queue)
		}
	}
	return true, nil
}
