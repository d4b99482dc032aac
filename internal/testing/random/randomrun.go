package random

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// Broker is a node that the programs may restart.
type Broker struct {
	*testbroker.Cluster
	// Patience is the time in which nothing moves before a missing message is lost. It is longer than
	// two dead-letter timers. A hand-over that has failed is tried again after five seconds.
	Patience time.Duration

	burials *sync.WaitGroup // of services that were killed
}

// DeadLetterTimer is the broker's dead-letter timer in milliseconds, short because faults make
// messages wait for it (F5), and long enough for a classic queue on a busy machine (F41).
const DeadLetterTimer = 5000

// StartBroker starts a node.
func StartBroker(ctx context.Context) (Broker, error) {
	cluster, err := testbroker.StartCluster(ctx, 1, testbroker.WithAdvancedConfig(fmt.Sprintf(
		"[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, %d}]}].", DeadLetterTimer)))
	return Broker{cluster, 15 * time.Second, new(sync.WaitGroup)}, err
}

// URL returns the node's address.
func (b Broker) URL() string { return b.URLs()[0] }

// run is one run of a program.
type run struct {
	program  Program
	broker   Broker
	queue    string
	via      string // the exchange, or empty
	strategy topology.Strategy
	plan     topology.Plan
	old      topology.Plan // of the earlier policy, whose wait queue Prune deletes
	record   *record
	service  *service
	operator *operate.Operator

	// disturbed is true after a fault that may have left a copy that nothing has counted.
	disturbed bool
	// declared is when a queue was declared last, and deleted says that one was deleted.
	declared time.Time
	deleted  bool
	// doubled is the number of doublings that the steps explain, and killed the number of deaths.
	doubled, killed int
	// held has the queues that kept messages to the end.
	held []string
}

// limit bounds the wait for the end of all messages. A restart and a crash loop take longest.
const limit = 60 * time.Second

// Result says how a program went.
type Result struct {
	Calls int
	Done  map[Action]int
	Extra int // calls beyond the outcomes, which are explained
	// ByBroker counts copies that the broker sent twice to a classic queue (F41).
	ByBroker int
}

// Run runs the program. The error lists the broken promises, or says that the run was not done,
// which matches ErrNotDone.
func (p Program) Run(ctx context.Context, b Broker) (Result, error) {
	r := &run{
		program: p, broker: b, queue: "random-" + unique(), record: newRecord(p),
	}
	if p.Via {
		r.via = r.queue + ".events"
	}
	r.strategy = p.topology(r.queue, r.via)
	result := Result{Done: map[Action]int{}}
	err := r.all(ctx, &result)
	if cleaned := r.cleanUp(ctx); cleaned != nil {
		err = errors.Join(err, fmt.Errorf("%w: %w", ErrNotDone, cleaned))
	}
	result.Calls = r.record.total()
	return result, err
}

// ErrNotDone means that a run could not be done, which says nothing about the promises.
var ErrNotDone = errors.New("the program could not be run")

func unique() string {
	b := make([]byte, 4)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// all runs the program from the first declaration to the verdict.
func (r *run) all(ctx context.Context, result *Result) (err error) {
	notDone := func(err error) error { return fmt.Errorf("%w: %w", ErrNotDone, err) }
	if r.plan, err = topology.PlanFor(r.strategy, r.queue, r.program.policy()); err != nil {
		return notDone(err)
	}
	if r.operator, err = operate.Open(ctx, r.broker.URL(), operate.WithoutPolicyCheck()); err != nil {
		return notDone(err)
	}
	defer func() { _ = r.operator.Close() }()
	if r.service, err = r.start(ctx); err != nil {
		return notDone(err)
	}
	defer func() {
		if r.service != nil {
			r.service.kill(r.broker.burials)
		}
	}()
	r.declared = time.Now()
	for i := range r.program.Messages {
		if err := r.publish(ctx, i); err != nil {
			return notDone(err)
		}
	}
	for _, step := range r.program.Steps {
		r.record.await(ctx, step.Calls, time.Second)
		rest(ctx, ms(step.Pause))
		done, err := r.act(ctx, step)
		if err != nil {
			return notDone(fmt.Errorf("%s: %w", step.Do, err))
		}
		if done {
			result.Done[step.Do]++
		}
	}
	letters, err := r.settle(ctx)
	if err != nil {
		return notDone(err)
	}
	verdict := judge(r, letters)
	result.Extra, result.ByBroker = verdict.extra, verdict.byBroker
	return verdict.err
}

// publish publishes message i, and returns when it is confirmed.
func (r *run) publish(ctx context.Context, i int) error {
	if r.via != "" {
		return r.send(ctx, r.via, routingKey, fmt.Sprint(i))
	}
	return r.send(ctx, "", r.queue, fmt.Sprint(i))
}

// send publishes a message, and returns when it is confirmed.
func (r *run) send(ctx context.Context, exchange, key, id string) error {
	return r.admin(func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false,
			amqp.Publishing{MessageId: id, Body: []byte(id), DeliveryMode: amqp.Persistent})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, startLimit)
		defer cancel()
		if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
			return errors.Join(errors.New("the message is not confirmed"), err)
		}
		return nil
	})
}

// admin runs do on a new channel, past the proxy.
func (r *run) admin(do func(*amqp.Channel) error) error {
	conn, err := amqp.DialConfig(r.broker.URL(), amqp.Config{Dial: amqp.DefaultDial(startLimit)})
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return do(ch)
}

// depth returns the number of ready messages of a queue, and 0 if there is none.
func (r *run) depth(queue string) (n int, err error) {
	err = r.admin(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		var refused *amqp.Error
		if errors.As(err, &refused) && refused.Code == amqp.NotFound {
			return nil
		}
		n = q.Messages
		return err
	})
	return n, err
}

// Close waits for the services that were killed, and ends the node.
func (b Broker) Close() error {
	b.burials.Wait()
	return b.Cluster.Close()
}

// cleanUp deletes everything of the program, when the broker can stand it.
func (r *run) cleanUp(ctx context.Context) error {
	if r.program.has(RestartNode, KillNode) {
		if err := r.broker.awaitDeadLettering(ctx); err != nil {
			return err
		}
	}
	return r.clean()
}

// clean deletes everything of the program.
func (r *run) clean() error {
	return r.admin(func(ch *amqp.Channel) (err error) {
		queues := []string{r.queue, r.queue + ".dlq.originals"}
		exchanges := []string{}
		for _, plan := range []topology.Plan{r.plan, r.old} {
			for _, q := range plan.Queues {
				queues = append(queues, q.Name)
			}
			for _, e := range plan.Exchanges {
				exchanges = append(exchanges, e.Name)
			}
		}
		if r.via != "" {
			exchanges = append(exchanges, r.via)
		}
		for _, name := range queues {
			_, failed := ch.QueueDelete(name, false, false, false)
			err = errors.Join(err, failed)
		}
		for _, name := range exchanges {
			err = errors.Join(err, ch.ExchangeDelete(name, false, false))
		}
		return err
	})
}

// rest waits for d, or until ctx is done.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
