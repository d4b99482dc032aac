package operate_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// What Export writes, and Import reads: a line for each message, from which it can
// be made again, type for type.
func ExampleEncode() {
	line, err := operate.Encode(amqp.Delivery{
		MessageId: "order-7", Headers: amqp.Table{"weight": int32(12)}, Body: []byte("one kettle"),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := operate.Decode(line)
	fmt.Printf("%s %T %s %v\n", d.MessageId, d.Headers["weight"], d.Body, err)
	// Output:
	// order-7 int32 one kettle <nil>
}

// Headers of any type as the tool shows them.
func ExampleHeaderText() {
	fmt.Println(operate.HeaderText("eu"), operate.HeaderText(int64(7)), operate.HeaderText(true))
	// Output:
	// eu 7 true
}

// What there is to decide on: many dead letters, few reasons.
func ExampleGroupByError() {
	letters := func(yield func(operate.Letter, error) bool) { // in a program: operator.Dead(…)
		for i, text := range []string{"no stock", "order 7: no such customer", "no stock"} {
			if !yield(operate.Letter{ID: fmt.Sprint("order-", i+1), Reason: "exhausted", Error: text}, nil) {
				return
			}
		}
	}
	var groups []operate.Group
	groups, err := operate.GroupByError(iter.Seq2[operate.Letter, error](letters))
	if err != nil {
		fmt.Println(err)
	}
	for _, group := range groups {
		var sample operate.Sample = group.Sample
		fmt.Println(group.Count, group.Reasons, group.Error, sample.ID)
	}
	one := operate.Filter{Group: groups[1].ID} // for operator.Replay(…)
	chooses, err := one.Matcher()
	fmt.Println(chooses(operate.Letter{Error: "order 8: no such customer"}), err)
	// Output:
	// 2 map[exhausted:2] no stock order-1
	// 1 map[exhausted:1] order #: no such customer order-2
	// true <nil>
}

// A filter that a person has written, for Replay, and in the same words for a log.
func ExampleParseFilter() {
	chosen, err := operate.ParseFilter(`reason=permanent error="no such customer" since=2026-03-01`)
	fmt.Println(chosen.Redacted(), err)
	// Output:
	// reason=permanent error="no such customer" since=2026-03-01T00:00:00Z <nil>
}

// Errors that differ in an order, an address and a time have one cause.
func ExampleFingerprint() {
	for _, text := range []string{
		`order 7 of ann@shop.example: dial tcp 10.0.0.7:443: i/o timeout after 1.5s`,
		`order 12 of bob@shop.example: dial tcp 10.0.0.8:443: i/o timeout after 2m0s`,
	} {
		fmt.Println(operate.Fingerprint(operate.Letter{Error: text}))
	}
	// Output:
	// 12a9ab54e4ad order # of <email>: dial tcp <address>: i/o timeout after #
	// 12a9ab54e4ad order # of <email>: dial tcp <address>: i/o timeout after #
}

// Each error has its own way out.
func ExampleErrUnsafe() {
	for _, err := range []error{
		operate.ErrUnsafe, operate.ErrInvalidOptions, operate.ErrNotConfirmed, operate.ErrUnsafePeek,
		operate.ErrNoQueue, operate.ErrTooSlow, operate.ErrUnreadable, operate.ErrStopped,
		operate.ErrUnsettled, operate.ErrBrakeOpen, operate.ErrNoBrake,
	} {
		switch err := fmt.Errorf("orders: %w", err); {
		case errors.Is(err, operate.ErrUnsafe), errors.Is(err, operate.ErrInvalidOptions),
			errors.Is(err, operate.ErrNotConfirmed):
			fmt.Println("nothing was done:", err)
		case errors.Is(err, operate.ErrUnsafePeek):
			fmt.Println("name the management API:", err)
		case errors.Is(err, operate.ErrNoQueue):
			fmt.Println("name the queue:", err)
		case errors.Is(err, operate.ErrTooSlow):
			fmt.Println("ask for fewer:", err)
		case errors.Is(err, operate.ErrUnreadable):
			fmt.Println("see the package's documentation:", err)
		case errors.Is(err, operate.ErrStopped):
			fmt.Println("the cause is not gone:", err)
		case errors.Is(err, operate.ErrUnsettled):
			fmt.Println("look at the service:", err)
		case errors.Is(err, operate.ErrBrakeOpen):
			fmt.Println("the services consume already:", err)
		case errors.Is(err, operate.ErrNoBrake):
			fmt.Println("compare the name with the names of Brakes:", err)
		}
	}
	// Output:
	// nothing was done: orders: not safe
	// nothing was done: orders: the options make no sense
	// nothing was done: orders: not confirmed
	// name the management API: orders: looking at its messages may delete them
	// name the queue: orders: the plan does not say which queue keeps its dead letters
	// ask for fewer: orders: looking has taken too long
	// see the package's documentation: orders: a message cannot be read
	// the cause is not gone: orders: too many of the replayed letters are dead again
	// look at the service: orders: it is still open what becomes of the replayed letters
	// the services consume already: orders: the brake is not stopped
	// compare the name with the names of Brakes: orders: there is no such brake
}

// A planned downtime of the payment provider: the services that share the brake stop consuming, and
// start again by themselves after two hours at the latest.
func ExampleOperator_StopBrake() {
	var operator *operate.Operator // of Open
	ctx := context.Background()
	downtime := func(limit time.Duration) error {
		if limit > operate.MaxBrakeStop {
			return errors.New("such a long downtime needs another plan")
		}
		shared, err := operator.StopBrake(ctx, "payments", "anna", "the provider moves", limit)
		switch {
		case err != nil:
			return err
		case !shared:
			log.Print("no service that is up has this brake")
		}
		// … the provider moves …
		var state header.BrakeState
		if state, err = operator.Brake(ctx, "payments"); err != nil {
			return err
		}
		log.Printf("stopped since %v by %s; %s probes", state.Since, state.By, state.Prober)
		return operator.StartBrake(ctx, "payments", "anna")
	}
	if err := downtime(2 * time.Hour); err != nil {
		log.Print(err)
	}
}

// Open names all problems at once, before it connects.
func ExampleOpen() {
	_, err := operate.Open(context.Background(), "localhost:5672",
		operate.WithManagement("localhost:15672"), operate.WithConfirmTimeout(0))
	fmt.Println(err)
	// Output:
	// open millpond operator: AMQP URL is invalid: it must begin with amqp:// or amqps://
	// WithManagement: the URL must begin with http:// or https://
	// WithConfirmTimeout: 0s is under 1ms
}

// An operator with every option. Most need WithManagement alone.
func ExampleOpen_options() {
	options := []operate.Option{
		operate.WithManagement("https://watcher:secret@rabbit-1:15671/"),
		operate.WithLogger(watermill.NewSlogLogger(nil)),
		operate.WithName("night shift"),
		operate.WithBrokers("amqp://shop:secret@rabbit-2/"),
		operate.WithCredentials(func(context.Context) (user, password string, err error) {
			return "shop", "from the vault", nil
		}),
		operate.WithAMQP(amqp.Config{Vhost: "shop"}),
		operate.WithConfirmTimeout(5 * time.Second),
		operate.WithPreProvisioned(),
		operate.WithoutPolicyCheck(), // only if no policy sets delivery-limit
	}
	operator, err := operate.Open(context.Background(), "amqp://shop:secret@rabbit-1/", options...)
	if err != nil {
		log.Print(err)
		return
	}
	defer operator.Close()
}

// A check before a deployment: critical findings stop it.
func ExampleOperator_Verify() {
	var operator *operate.Operator // of Open
	plan, err := topology.PlanFor(topology.PerQueue{}, "orders", backoff.List{time.Second})
	if err != nil {
		log.Print(err)
		return
	}
	report, err := operator.Verify(context.Background(), plan)
	if err != nil {
		log.Print(err)
		return
	}
	for _, f := range report.Findings {
		switch {
		case f.Problem == operate.Unchecked:
			log.Print("not looked at: ", f.Text)
		case f.Severity == operate.Critical:
			log.Fatal(f)
		case f.Severity == operate.Warning:
			log.Print(f)
		}
	}
}

// A Finding prints as one line; programs compare its fields.
func ExampleFinding() {
	var critical operate.Severity = operate.Critical
	for _, problem := range []operate.Problem{
		operate.Missing, operate.Conflicting, operate.Dropping, operate.Overruled, operate.Exposed,
		operate.Disabled, operate.Consumed, operate.Unchecked, operate.Stranded,
	} {
		f := operate.Finding{
			Severity: critical, Problem: problem, Kind: "queue", Name: "orders",
			Text: "is " + string(problem),
		}
		fmt.Println(f)
	}
	// Output:
	// critical: queue "orders": is missing
	// critical: queue "orders": is conflicting
	// critical: queue "orders": is dropping
	// critical: queue "orders": is overruled
	// critical: queue "orders": is exposed
	// critical: queue "orders": is disabled
	// critical: queue "orders": is consumed
	// critical: queue "orders": is unchecked
	// critical: queue "orders": is stranded
}

// A Report prints as a table that says where each count came from.
func ExampleReport() {
	count := func(n int, source operate.Source) operate.Count {
		return operate.Count{N: n, Source: source}
	}
	unknown := operate.Count{N: -1}
	var queues []operate.Queue
	for _, role := range []operate.Role{
		operate.RoleMain, operate.RoleWait, operate.RoleDead, operate.RoleLine, operate.RoleStranded,
	} {
		queues = append(queues, operate.Queue{
			Name: "orders." + string(role), Role: role, Ready: count(2, operate.SourceAMQP),
			Consumers: count(0, operate.SourceAMQP), Total: count(3, operate.SourceManagement),
			Held: unknown,
		})
	}
	table := operate.Report{Queue: "orders", Queues: queues}.String()
	for line := range strings.Lines(table) {
		fmt.Println(strings.TrimSpace(line))
	}
	// Output:
	// queue            role      delay  ready     consumers  total           held
	// orders.main      main      -      2 (amqp)  0 (amqp)   3 (management)  -
	// orders.wait      wait      -      2 (amqp)  0 (amqp)   3 (management)  -
	// orders.dead      dead      -      2 (amqp)  0 (amqp)   3 (management)  -
	// orders.line      line      -      2 (amqp)  0 (amqp)   3 (management)  -
	// orders.stranded  stranded  -      2 (amqp)  0 (amqp)   3 (management)  -
}

// An operator at work on one queue, after an outage.
func ExampleOperator() {
	var operator *operate.Operator // of Open
	var plan topology.Plan         // of topology.PlanFor
	ctx := context.Background()
	// The letters that failed on the outage go back, ten a second, and are counted.
	moved, err := operator.Replay(ctx, plan, operate.ReplayOptions{
		Filter: operate.Filter{Error: "connection refused"}, Rate: 10,
		Progress: func(p operate.Progress) { log.Print(p.Seen, " of ", p.Total) },
	})
	log.Print(moved.Chosen, err)
	// Letters that nothing can repair are thrown away, at most a hundred at once.
	gone, err := operator.Discard(ctx, plan, operate.DiscardOptions{
		Filter: operate.Filter{Error: "no such customer"}, Limit: 100,
	})
	log.Print(gone.Chosen, err)
	// A file that Export wrote is published again, without the ten lines that are done.
	file := strings.NewReader("")
	lines, err := operator.Import(ctx, plan, file, operate.ImportOptions{Skip: 10})
	log.Print(lines, err)
	// Messages that wait for an hour come back now.
	waiting, err := operator.Waiting(ctx, plan, operate.Filter{Delay: time.Hour})
	for _, w := range waiting {
		var one operate.Waiter = w
		log.Print(one.ID, one.Due, err)
	}
	released, err := operator.Release(ctx, plan, operate.Filter{Delay: time.Hour})
	log.Print(released.Chosen, err)
	// Wait queues of an older policy are deleted when they are empty.
	pruned, err := operator.Prune(ctx, []topology.Plan{plan}, operate.PruneOptions{
		Queues: []string{"orders.wait.10m"}, NobodyPublishes: true, Wait: 10 * time.Minute,
	})
	for _, p := range pruned {
		var one operate.Pruned = p
		log.Print(one, err)
	}
}

// A queue was deleted while messages waited for it. It is back, and so its messages go back, too.
func ExampleOperator_ReturnStranded() {
	var operator *operate.Operator // of Open
	const queue = "millpond.stranded"
	forOrders := operate.Filter{Match: func(l operate.Letter) bool { return l.Queue == "orders" }}
	for m, err := range operator.Stranded(context.Background(), queue, forOrders, 0) {
		if err != nil {
			log.Fatal(err)
		}
		var stranded operate.StrandedMessage = m
		log.Print(stranded.ID, stranded.DeadAt, stranded.Why)
	}
	var options operate.ReplayOptions
	options.Filter = forOrders
	var returned operate.Returned
	returned, err := operator.ReturnStranded(context.Background(), queue, options)
	log.Print(returned.Done, err)
	for _, left := range returned.Left {
		var count operate.QueueCount = left
		if count.Queue == operate.OtherQueues {
			count.Queue = "more queues"
		}
		log.Print(count.Messages, " stay, because there is no ", count.Queue)
	}
}

// Each cause has its own way out.
func ExampleCause() {
	for _, cause := range []operate.Cause{
		operate.CauseQueueGone, operate.CauseBindingGone, operate.CauseKeyChanged, operate.CauseOver,
		operate.CauseUnknown,
	} {
		switch cause {
		case operate.CauseQueueGone, operate.CauseBindingGone:
			fmt.Println(cause, "- start the service, which declares its plan")
		case operate.CauseKeyChanged:
			fmt.Println(cause, "- narrow the policy")
		case operate.CauseOver:
			fmt.Println(cause, "- return the message")
		case operate.CauseUnknown:
			fmt.Println(cause, "- name the management API")
		}
	}
	// Output:
	// queue_gone - start the service, which declares its plan
	// binding_gone - start the service, which declares its plan
	// key_changed - narrow the policy
	// over - return the message
	// unknown - name the management API
}
