package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/experiment"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

const (
	// arrival is how long a message that is due is waited for. F6 has milliseconds.
	arrival = 10 * time.Second
	// waitTime is the TTL of a wait.
	waitTime = time.Second
	// late is the delay from which a busy machine explains no lateness.
	late = 2 * time.Second
	// manyMessages is the largest number that one check publishes at once.
	manyMessages = 20
)

// waiting declares a wait queue for messages of a queue, as a strategy does.
func (b *bench) waiting(
	kind topology.QueueType, queue string, delay time.Duration, extra amqp.Table,
) topology.Queue {
	plan, err := topology.PerQueue{Type: kind, WaitArguments: extra}.Plan(
		queue, []time.Duration{delay})
	b.must(err)
	i := slices.IndexFunc(plan.Queues, func(q topology.Queue) bool { return q.Delay == delay })
	b.declare(plan.Queues[i])
	return plan.Queues[i]
}

// keeping is a queue that keeps messages, as a strategy declares its dead-letter queue.
func (b *bench) keeping(kind topology.QueueType, name string) topology.Queue {
	plan, err := topology.PerQueue{Type: kind}.Plan(b.prefix+name, nil)
	b.must(err)
	q := plan.Queues[len(plan.Queues)-1]
	q.Name = b.prefix + name
	return q
}

// kept declares a queue that keeps messages, and returns its name.
func (b *bench) kept(kind topology.QueueType, name string) string {
	q := b.keeping(kind, name)
	b.declare(q)
	return q.Name
}

// pair declares a queue and a wait queue before it.
func (b *bench) pair(
	kind topology.QueueType, name string, delay time.Duration,
) (queue, wait string) {
	queue = b.kept(kind, name)
	return queue, b.waiting(kind, queue, delay, nil).Name
}

// waits sends three messages through a wait queue, one after the other. A single early message is a
// difference. A single late message may be a pause of a busy machine.
func waits(kind topology.QueueType) func(*bench) {
	return func(b *bench) {
		queue, wait := b.pair(kind, string(kind), waitTime)
		var times []time.Duration
		for range 3 {
			began := time.Now()
			b.enter("", wait, amqp.Publishing{})
			back := b.take(queue, 1, arrival)
			if len(back) == 0 {
				b.Fatalf("a message has not returned within %v", arrival)
			}
			times = append(times, back[0].at.Sub(began))
		}
		earliest, latest := slices.Min(times), slices.Max(times)
		b.require(earliest >= waitTime && earliest <= waitTime+late,
			"3 messages returned after %d to %d ms", earliest.Milliseconds(), latest.Milliseconds())
	}
}

func headerTypes(b *bench) {
	queue, wait := b.pair(topology.Quorum, "headers", 200*time.Millisecond)
	sent := experiment.Typed("typed")
	b.enter("", wait, sent)
	back := b.take(queue, 1, arrival)
	if len(back) == 0 {
		b.Skipf("the message has not returned")
	}
	changed := experiment.Differences(sent, back[0].Delivery)
	b.require(len(changed) == 0, "%s", cmp.Or(strings.Join(changed, "; "),
		fmt.Sprintf("all %d are as they were", len(sent.Headers))))
}

// priorities looks whether a message waits for a later message of a higher priority. The two times
// of arrival are compared with each other, so that a slow broker changes nothing.
func priorities(b *bench) {
	const delay, apart = 2 * time.Second, 1500 * time.Millisecond
	queue, wait := b.pair(topology.Quorum, "priorities", delay)
	seen := ""
	for range 2 {
		b.enter("", wait, amqp.Publishing{Priority: 0})
		b.Pause(apart)
		b.enter("", wait, amqp.Publishing{Priority: 4})
		back := b.take(queue, 2, delay+arrival)
		if len(back) < 2 {
			b.Fatalf("%d of 2 messages returned", len(back))
		}
		gap := back[1].at.Sub(back[0].at)
		seen = fmt.Sprintf("the first returned %d ms before the second", gap.Milliseconds())
		if back[0].Priority != 0 {
			seen = "the second message returned first"
		} else if gap > apart/2 {
			b.Logf("%s", seen)
			return
		}
	}
	b.Fatalf("%s", seen)
}

// returned publishes messages that no queue takes, and looks whether each return is there when its
// confirm is.
func returned(b *bench) {
	missing := b.prefix + "missing"
	before, refused := 0, 0
	for i := range manyMessages {
		confirm, err := b.ch.PublishWithDeferredConfirmWithContext(b.ctx, "", missing, true, false,
			amqp.Publishing{MessageId: fmt.Sprint(i)})
		b.must(err)
		acked, err := confirm.WaitContext(b.ctx)
		b.must(err)
		if !acked {
			refused++
		}
		if b.ch.IsClosed() {
			b.must(ending(<-b.closed))
		}
		select {
		case r := <-b.returns:
			if r.MessageId == fmt.Sprint(i) {
				before++
			}
		default:
		}
	}
	if refused == manyMessages {
		b.Logf("all %d were refused", refused)
		return
	}
	b.require(before == manyMessages,
		"%d of %d were returned before their confirm", before, manyMessages)
}

// deliveries is more often than the limit of RabbitMQ 4 allows by default (F2).
const deliveries = 30

func deliveryLimit(b *bench) {
	queue := b.kept(topology.Quorum, "limit")
	b.enter("", queue, amqp.Publishing{})
	for i := range deliveries {
		got := b.Until(arrival, func() bool {
			d, ok, err := b.ch.Get(queue, false)
			b.must(err)
			if ok {
				b.must(d.Reject(true))
			}
			return ok
		})
		if !got {
			b.Fatalf("it was gone after it was given back %d times", i)
		}
	}
	b.Logf("it was still there after it was given back %d times", deliveries)
}

// atLeastOnce finds out without the target whether a wait queue holds messages whose wait is over.
// AMQP does not count them, but the queue's limit does: a queue that holds messages refuses others.
// The broker would deliver the held messages at its next try, up to three minutes later (F5).
func atLeastOnce(b *bench) {
	const limit, more = 4, 3
	q := b.waiting(topology.Quorum, b.prefix+"absent", 300*time.Millisecond,
		amqp.Table{"x-max-length": limit})
	first := b.putAll(q.Name, limit+1) // one more than the limit fits (F39)
	if first < limit {
		b.Fatalf("the wait queue has taken %d of %d messages", first, limit)
	}
	b.empties(q)
	if b.putAll(q.Name, more) == more {
		b.Fatalf("the wait queue took %d messages and, when their wait was over, "+
			"%d more, with a limit of %d: it does not hold them", first, more, limit)
	}
	b.Logf("the wait queue holds them: it is full while no message is ready")
}

// heldAgain lets the target appear when a message is held already.
func heldAgain(b *bench) {
	target := b.keeping(topology.Quorum, "appears")
	q := b.waiting(topology.Quorum, target.Name, 300*time.Millisecond, nil)
	b.enter("", q.Name, amqp.Publishing{})
	b.empties(q)
	b.declare(target)
	began := time.Now()
	switch back := b.take(target.Name, 1, b.Patience); {
	case len(back) == 1:
		b.Logf("it arrived %v after its target appeared", rounded(time.Since(began)))
	case b.Patience > deadLetterTimer+time.Minute:
		b.Fatalf("it has not arrived within %v", b.Patience)
	default:
		b.Skipf("not within %v; by default the broker tries again every 3 minutes: "+
			"a patience of 4m sees it", b.Patience)
	}
}

// deadLetterTimer is dead_letter_worker_publisher_confirm_timeout by default (F41).
const deadLetterTimer = 3 * time.Minute

// alternateExchange sends messages of two queues through the wait queue of Shared. One of the
// queues is missing.
func alternateExchange(b *bench) {
	const delay = time.Second
	queue := b.keeping(topology.Quorum, "bound")
	plan, err := topology.Shared{Prefix: strings.TrimSuffix(b.prefix, ".")}.Plan(
		queue.Name, []time.Duration{delay})
	b.must(err)
	plan.Queues = append(plan.Queues[:len(plan.Queues)-1], queue) // it needs no dead letters
	b.build(plan)
	for _, key := range []string{b.prefix + "unbound", queue.Name} {
		b.enter(plan.WaitSteps[0].Exchange, key, amqp.Publishing{})
	}
	if len(b.take(b.prefix+"stranded", 1, delay+arrival)) == 0 {
		b.Fatalf("the message without a queue has not reached the stranded queue")
	}
	if len(b.take(queue.Name, 1, arrival)) == 0 {
		b.Fatalf("the message behind it has not returned")
	}
	b.Logf("the message without a queue is in the stranded queue, the other returned")
}

// workerPrefetch is dead_letter_worker_consumer_prefetch by default: how many messages of a wait
// queue may be on their way at once (F5).
const workerPrefetch = 32

// dueAtOnce holds as many messages without a queue as may be on their way by default, and looks
// whether the next one passes them.
func dueAtOnce(b *bench) {
	queue := b.keeping(topology.Quorum, "due")
	b.declare(queue)
	plan, err := topology.PerQueue{}.Plan(queue.Name, []time.Duration{200 * time.Millisecond})
	b.must(err)
	wait := plan.Queues[0]
	delete(wait.Arguments, "x-dead-letter-routing-key") // each goes to the queue of its key
	in := topology.Exchange{Name: b.prefix + "due.in", Kind: "fanout"}
	b.build(topology.Plan{
		Exchanges: []topology.Exchange{in}, Queues: []topology.Queue{wait},
		Bindings: []topology.Binding{{Exchange: in.Name, Queue: wait.Name}},
	})
	for range workerPrefetch {
		b.enter(in.Name, b.prefix+"none", amqp.Publishing{})
	}
	b.enter(in.Name, queue.Name, amqp.Publishing{})
	seen := fmt.Sprintf("more than %d are on their way at once", workerPrefetch)
	if len(b.take(queue.Name, 1, late)) == 0 {
		seen = fmt.Sprintf("%d are on their way at once: dead_letter_worker_consumer_prefetch = 128 "+
			"is faster", workerPrefetch)
	}
	b.Logf("%s", seen)
}

// keeps watches messages in a queue that keeps them.
func keeps(kind topology.QueueType) func(*bench) {
	return func(b *bench) {
		queue := b.kept(kind, "kept."+string(kind))
		began := time.Now()
		put := b.putAll(queue, manyMessages)
		if put < manyMessages {
			b.Fatalf("the queue has taken %d of %d messages", put, manyMessages)
		}
		fewer := 0 // looks in a row, because a count may be old
		b.Until(b.Patience, func() bool {
			left, err := b.ready(queue)
			if audit.IsCode(err, amqp.NotFound) {
				b.Fatalf("the queue was gone after %v", rounded(time.Since(began)))
			}
			b.must(err)
			if fewer++; left >= put {
				fewer = 0
			}
			if fewer < 3 {
				b.Pause(time.Second / 2)
			}
			return fewer == 3
		})
		after := rounded(time.Since(began))
		left := b.take(queue, put, late)
		b.require(len(left) == put, "%d of %d messages were there after %v", len(left), put, after)
	}
}

// consumerTimeout keeps a delivery unacked.
func consumerTimeout(b *bench) {
	queue := b.kept(topology.Quorum, "unacked")
	b.enter("", queue, amqp.Publishing{})
	cancelled := b.ch.NotifyCancel(make(chan string, 1))
	arrived, err := b.ch.Consume(queue, "", false, false, false, false, nil)
	b.must(err)
	select {
	case _, ok := <-arrived:
		if !ok {
			b.must(ending(<-b.closed))
		}
	case <-time.After(arrival):
		b.Fatalf("no consumer got the message within %v", arrival)
	case <-b.ctx.Done():
		b.must(context.Cause(b.ctx))
	}
	began := time.Now()
	const seen = "the broker took an unacked delivery back after %v"
	select {
	case <-cancelled: // 4.3 cancels the consumer (F33)
		b.Fatalf(seen, rounded(time.Since(began)))
	case why := <-b.closed:
		if why == nil || why.Code != amqp.PreconditionFailed {
			b.must(ending(why))
		}
		b.Fatalf(seen, rounded(time.Since(began)))
	case <-b.ctx.Done():
		b.must(context.Cause(b.ctx))
	case <-time.After(b.Patience):
	}
	// Before 4.3 the broker looks once a minute.
	if b.Patience < audit.DefaultConsumerTimeout-time.Minute {
		b.Skipf("longer than %v; the broker does not show it: on a node, "+
			"`rabbitmqctl environment` prints consumer_timeout", b.Patience)
	}
	b.Logf("a delivery stayed unacked for %v", b.Patience)
}

// rounded is a duration for people.
func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

const noManagement = "only the management API shows them: name it with WithManagement, " +
	"or with millpond --management"

// policies judges the policies of the plans. Without a plan it judges names that only a policy for
// all queues matches, and the names that services with Shared have in common.
func policies(b *bench) {
	if b.management == "" {
		b.Skipf(noManagement)
	}
	plans := b.plans
	if len(plans) == 0 {
		for _, strategy := range []topology.Strategy{topology.PerQueue{}, topology.Shared{}} {
			plan, err := strategy.Plan(b.prefix+"policies", nil)
			b.must(err)
			plans = append(plans, plan)
		}
	}
	// Nothing is declared, not even to compare it: some of the names are of other services.
	opts := []operate.Option{operate.WithManagement(b.management), operate.WithPreProvisioned()}
	if b.amqp != nil {
		opts = append(opts, operate.WithAMQP(*b.amqp))
	}
	o, err := operate.Open(b.ctx, b.url, opts...)
	b.must(err)
	defer func() { _ = o.Close() }()
	var harm, unseen []string
	said := map[string]bool{} // the same policy does the same to many queues
	for _, plan := range plans {
		report, err := o.Verify(b.ctx, plan)
		b.must(err)
		for _, f := range report.Findings {
			list := &harm
			switch {
			case f.Problem == operate.Unchecked && f.Kind == "broker":
				list = &unseen
			case f.Problem == operate.Overruled || f.Problem == operate.Disabled:
			case f.Problem == operate.Exposed && f.Kind == "broker" && f.Name != "replicas":
			default:
				continue // about queues that need not exist
			}
			text, _, _ := strings.Cut(f.Text, "; exempt it by a policy")
			if !said[text] {
				said[text], f.Text = true, text
				*list = append(*list, f.String())
			}
		}
	}
	switch {
	case len(harm) > 0:
		b.Fatalf("%s", several(harm, "\n"))
	case len(unseen) > 0:
		b.Skipf("%s", several(unseen, "\n"))
	}
	b.Logf("none found")
}

// scratchRights uses each right once.
func scratchRights(b *bench) {
	queue := b.prefix + "rights"
	var refused rights
	err := b.tryDeclare(topology.Queue{Name: queue})
	b.must(refused.note(right("configure", queue), err))
	_, err = b.put("", queue, amqp.Publishing{})
	b.must(refused.note(right("write", "amq.default"), err))
	err = b.conn.Do(b.ctx, func(ch *amqp.Channel) error {
		_, _, err := ch.Get(queue, true)
		return err
	})
	if audit.IsCode(err, amqp.NotFound) { // it could not be configured
		err = nil
	}
	b.must(refused.note(right("read", queue), err))
	refused.tell(b, "configure, write and read")
}

// rights are the rights that the broker has refused, each with its name.
type rights []string

// note keeps a refusal and returns any other error.
func (r *rights) note(right string, err error) error {
	if !audit.IsCode(err, amqp.AccessRefused) {
		return err
	}
	*r = append(*r, right)
	return nil
}

func right(verb, name string) string { return fmt.Sprintf("%s %q", verb, name) }

func (r rights) tell(b *bench, all string) {
	if len(r) > 0 {
		b.Fatalf("the user may not %s", several(r, ", "))
	}
	b.Logf("%s", all)
}

// several joins at most five texts.
func several(texts []string, between string) string {
	const most = 5
	if len(texts) <= most {
		return strings.Join(texts, between)
	}
	return strings.Join(texts[:most], between) + fmt.Sprintf("%sand %d more", between, len(texts)-most)
}

// planRights asks for each right that a plan needs, as Plan.Permissions has them, with requests
// that the broker refuses for another reason once the right is there. They declare, consume and
// publish nothing (F31). Other brokers than RabbitMQ are not asked, because they might fulfil them.
func planRights(plan topology.Plan, product string) func(*bench) {
	return func(b *bench) {
		if product != rabbitMQ {
			b.Skipf("not asked: %s may not refuse the questions", product)
		}
		a := asker{b: b, asked: map[string]bool{}}
		a.read(plan.Queue)
		for _, r := range append(slices.Clone(plan.WaitSteps), plan.Dead) {
			a.write(r.Exchange)
		}
		if !b.provisioned {
			a.declares(plan)
		}
		a.refused.tell(b, fmt.Sprintf("all of %d rights", len(a.asked)))
	}
}

// asker asks for rights, each once.
type asker struct {
	b       *bench
	asked   map[string]bool
	refused rights
}

func (a *asker) ask(right string, question func(ch *amqp.Channel) error) {
	if a.asked[right] {
		return
	}
	a.asked[right] = true
	err := a.b.conn.Do(a.b.ctx, question)
	if audit.IsCode(err, amqp.PreconditionFailed) || audit.IsCode(err, amqp.NotFound) {
		return // the right is there
	}
	a.b.must(a.refused.note(right, err))
}

func (a *asker) declares(plan topology.Plan) {
	a.configure(plan.Queue)
	for _, q := range plan.Queues {
		a.configure(q.Name)
		if exchange, ok := q.Arguments["x-dead-letter-exchange"].(string); ok {
			a.read(q.Name)
			a.write(exchange)
		}
	}
	for _, e := range plan.Exchanges {
		a.ask(right("configure", e.Name), func(ch *amqp.Channel) error {
			// The argument must be a text.
			return ch.ExchangeDeclare(e.Name, e.Kind, true, e.AutoDelete, false, false,
				amqp.Table{"alternate-exchange": int32(1)})
		})
		if alternate, ok := e.Arguments["alternate-exchange"].(string); ok {
			a.write(alternate)
		}
	}
	for _, bound := range plan.Bindings {
		key := a.b.prefix + "none" // such a binding does not exist
		to := bound.Queue + bound.ToExchange
		a.ask(fmt.Sprintf("bind %q to %q", to, bound.Exchange), func(ch *amqp.Channel) error {
			if bound.ToExchange != "" {
				return ch.ExchangeUnbind(bound.ToExchange, key, bound.Exchange, false, nil)
			}
			return ch.QueueUnbind(bound.Queue, key, bound.Exchange, nil)
		})
	}
}

// configure declares a queue of a type that does not exist.
func (a *asker) configure(queue string) {
	a.ask(right("configure", queue), func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false,
			amqp.Table{"x-queue-type": "millpond-doctor"})
		return err
	})
}

// read consumes with two arguments of which each type of queue refuses one.
func (a *asker) read(queue string) {
	a.ask(right("read", queue), func(ch *amqp.Channel) error {
		if err := ch.Qos(1, 0, false); err != nil {
			return err
		}
		_, err := ch.Consume(queue, "", false, false, false, false,
			amqp.Table{"x-stream-offset": "next", "x-priority": int32(0)})
		return err
	})
}

// write publishes a message with an expiration that is no number (F7).
func (a *asker) write(exchange string) {
	name := exchange
	if name == "" {
		name = "amq.default"
	}
	a.ask(right("write", name), func(ch *amqp.Channel) error {
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		if err := ch.Confirm(false); err != nil {
			return err
		}
		confirm, err := ch.PublishWithDeferredConfirmWithContext(a.b.ctx, exchange,
			a.b.prefix+"none", true, false, amqp.Publishing{Expiration: "never"})
		if err != nil {
			return err
		}
		acked, err := confirm.WaitContext(a.b.ctx)
		if err != nil {
			return err
		}
		if acked || !ch.IsClosed() {
			return errors.New("the broker has not refused an expiration that is no number")
		}
		return ending(<-closed)
	})
}
