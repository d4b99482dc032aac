package operate_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// What Export writes, and Import reads: a line for each message, from which it can
// be made again, type for type.
func ExampleEncode() {
	letter := operate.Letter{Delivery: amqp.Delivery{
		MessageId: "order-7", Headers: amqp.Table{"weight": int32(12)}, Body: []byte("one kettle"),
	}}
	line, err := operate.Encode(letter.Delivery)
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := operate.Decode(line)
	weight := operate.HeaderText(d.Headers["weight"]) // as Watermill's metadata has it
	fmt.Printf("%s %T %s %s %v\n", d.MessageId, d.Headers["weight"], weight, d.Body, err)
	one := func(yield func(operate.Letter, error) bool) { yield(letter, nil) } // Operator.Dead
	fmt.Println(operate.Export(io.Discard, one))
	// Output:
	// order-7 int32 12 one kettle <nil>
	// 1 <nil>
}

// What there is to decide on: many dead letters, few causes. Errors that differ in an order, an
// address and a time have one. A filter chooses a cause, or what a person has written, and is in a
// log in the same words.
func ExampleGroupByError() {
	letters := func(yield func(operate.Letter, error) bool) { // in a program: operator.Dead(…)
		for i, text := range []string{
			"order 7 of ann@shop.example: dial tcp 10.0.0.7:443: i/o timeout after 1.5s", "no stock",
			"order 12 of bob@shop.example: dial tcp 10.0.0.8:443: i/o timeout after 2m0s",
		} {
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
	fmt.Println(operate.Fingerprint(operate.Letter{Error: "order 8: no stock"}))
	chosen, err := operate.ParseFilter("since=2026-03-01 error=timeout group=" + groups[0].ID)
	fmt.Println(chosen.Redacted(), err) // for operator.Replay(…)
	// Output:
	// 2 map[exhausted:2] order # of <email>: dial tcp <address>: i/o timeout after # order-1
	// 1 map[exhausted:1] no stock order-2
	// b413f119d95b order #: no stock
	// error=timeout group=12a9ab54e4ad since=2026-03-01T00:00:00Z <nil>
}

// Each error has its own way out; errors.Is tells them apart.
func ExampleErrUnsafe() {
	for _, way := range []struct {
		err error
		out string
	}{
		{operate.ErrUnsafe, "nothing was done"},
		{operate.ErrInvalidOptions, "nothing was done"},
		{operate.ErrUnsafePeek, "name the management API"},
		{operate.ErrNoQueue, "name the queue"},
		{operate.ErrTooSlow, "ask for fewer"},
		{operate.ErrUnreadable, "see the package's documentation"},
		{operate.ErrStopped, "the cause is not gone"},
		{operate.ErrUnsettled, "look at the service"},
		{operate.ErrBrakeOpen, "the services consume already"},
		{operate.ErrNoBrake, "compare the name with the names of Brakes"},
	} {
		if err := fmt.Errorf("orders: %w", way.err); errors.Is(err, operate.ErrUnsafePeek) {
			fmt.Printf("%v: %s", err, way.out)
		}
	}
	// Output: orders: looking at its messages may delete them: name the management API
}

// A planned downtime of the payment provider: the services that share the brake stop consuming, and
// start again by themselves after two hours at the latest.
func ExampleOperator_StopBrake() {
	var operator *operate.Operator // of Open
	ctx, limit := context.Background(), min(2*time.Hour, operate.MaxBrakeStop)
	shared, err := operator.StopBrake(ctx, "payments", "anna", "the provider moves", limit)
	log.Print(shared, err) // false: no service that is up has this brake
	// … the provider moves …
	var state header.BrakeState
	state, err = operator.Brake(ctx, "payments")
	log.Printf("stopped since %v by %s; %s probes: %v", state.Since, state.By, state.Prober, err)
	log.Print(operator.StartBrake(ctx, "payments", "anna"))
}

// Open names all problems at once, before it connects. Most operators need WithManagement alone.
func ExampleOpen() {
	var management operate.Option = operate.WithManagement("localhost:15672")
	_, err := operate.Open(context.Background(), "localhost:5672", management,
		operate.WithLogger(watermill.NewSlogLogger(nil)),
		operate.WithName("night shift"),
		operate.WithBrokers("amqp://shop:secret@rabbit-2/"),
		operate.WithCredentials(func(context.Context) (user, password string, err error) {
			return "shop", "from the vault", nil
		}),
		operate.WithAMQP(amqp.Config{Vhost: "shop"}),
		operate.WithPreProvisioned(),
		operate.WithoutPolicyCheck(), // only if no policy sets delivery-limit
	)
	fmt.Println(err)
	// Output:
	// open millpond operator: AMQP URL is invalid: it must begin with amqp:// or amqps://
	// WithManagement: the URL must begin with http:// or https://
}

// A Report prints as a table that says where each count came from, and each Finding as one line.
// Programs compare the fields.
func ExampleReport() {
	count := func(n int, source operate.Source) operate.Count {
		return operate.Count{N: n, Source: source}
	}
	report := operate.Report{Queue: "orders"} // in a program: operator.Verify(…)
	for _, role := range []operate.Role{
		operate.RoleMain, operate.RoleWait, operate.RoleDead, operate.RoleLine, operate.RoleStranded,
	} {
		report.Queues = append(report.Queues, operate.Queue{
			Name: "orders." + string(role), Role: role, Ready: count(2, operate.SourceAMQP),
			Consumers: count(0, operate.SourceAMQP), Total: count(3, operate.SourceManagement),
			Held: operate.Count{N: -1},
		})
	}
	for line := range strings.Lines(report.String()) {
		fmt.Println(strings.TrimSpace(line))
	}
	severity := map[bool]operate.Severity{true: operate.Critical, false: operate.Warning}
	for i, problem := range []operate.Problem{
		operate.Missing, operate.Conflicting, operate.Dropping, operate.Overruled, operate.Exposed,
		operate.Disabled, operate.Consumed, operate.Unchecked, operate.Stranded,
	} {
		fmt.Println(operate.Finding{
			Severity: severity[i < 4], Problem: problem, Kind: "queue", Name: "orders",
			Text: "is " + string(problem),
		})
	}
	// Output:
	// queue            role      delay  ready     consumers  total           held
	// orders.main      main      -      2 (amqp)  0 (amqp)   3 (management)  -
	// orders.wait      wait      -      2 (amqp)  0 (amqp)   3 (management)  -
	// orders.dead      dead      -      2 (amqp)  0 (amqp)   3 (management)  -
	// orders.line      line      -      2 (amqp)  0 (amqp)   3 (management)  -
	// orders.stranded  stranded  -      2 (amqp)  0 (amqp)   3 (management)  -
	// critical: queue "orders": is missing
	// critical: queue "orders": is conflicting
	// critical: queue "orders": is dropping
	// critical: queue "orders": is overruled
	// warning: queue "orders": is exposed
	// warning: queue "orders": is disabled
	// warning: queue "orders": is consumed
	// warning: queue "orders": is unchecked
	// warning: queue "orders": is stranded
}

// An operator at work on one queue, after an outage.
func ExampleOperator() {
	var operator *operate.Operator // of Open
	var plan topology.Plan         // of topology.PlanFor
	ctx := context.Background()
	report, err := operator.Verify(ctx, plan)
	log.Print(report.Findings, err)
	// The letters that failed on the outage go back, ten a second, and are counted.
	moved, err := operator.Replay(ctx, plan, operate.MoveOptions{
		Filter: operate.Filter{Error: "connection refused"}, Rate: 10,
		Progress: func(p operate.Progress) { log.Print(p.Seen, " of ", p.Total) },
	})
	log.Print(moved.Chosen, err)
	// Letters that nothing can repair are thrown away, at most a hundred at once.
	gone, err := operator.Discard(ctx, plan, operate.MoveOptions{
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
	released, err := operator.Release(ctx, plan, operate.MoveOptions{
		Filter: operate.Filter{Delay: time.Hour},
	})
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
	returned, err := operator.ReturnStranded(context.Background(), queue,
		operate.MoveOptions{Filter: forOrders})
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
	start := "start the service, which declares its plan"
	ways := map[operate.Cause]string{
		operate.CauseQueueGone: start, operate.CauseBindingGone: start,
		operate.CauseKeyChanged: "narrow the policy", operate.CauseOver: "return the message",
		operate.CauseUnknown: "name the management API",
	}
	fmt.Println(ways[operate.Cause("key_changed")])
	// Output: narrow the policy
}

// A replay of all letters of an outage: three first, then ten, a hundred, and the rest. Then by
// itself, beside the service: the canary every ten minutes until it is handled, then the rest.
func ExampleOperator_Ramp() {
	var operator *operate.Operator // of Open
	var plan topology.Plan         // of topology.PlanFor
	ctx := context.Background()
	options := operate.RampOptions{
		MoveOptions: operate.MoveOptions{
			Filter: operate.Filter{Error: "connection refused"}, Rate: 50,
		},
		Canary: 3, Steps: []int{10, 100}, StopAt: 0.05,
		Report: func(r operate.RampResult) { log.Print(r.Step, ": ", r.Replayed(), " replayed") },
	}
	var rehearsal operate.Rehearsal
	rehearsal, err := operator.Rehearse(ctx, plan, options)
	for _, f := range rehearsal.Findings {
		if f.Problem == operate.Unconsumed || f.Problem == operate.Forbidden {
			log.Print(f, err)
			return
		}
	}
	result, err := operator.Ramp(ctx, plan, options)
	log.Print(result, err)
	err = operator.RampEvery(ctx, plan, operate.RepeatOptions{
		RampOptions: options, Every: 10 * time.Minute,
		Ran: func(r operate.RampResult, err error) { log.Print(r, err) },
	})
	log.Print(err)
}

// All letters are in one place.
func ExampleRampResult_String() {
	r := operate.RampResult{Started: 100, Handled: 88, DeadAgain: 6, Waiting: 3, Unsettled: 1, Left: 2}
	fmt.Println(r)
	fmt.Println(r.Replayed(), "replayed")
	// Output:
	// started 100 = handled 88 + dead again 6 + waiting 3 + unsettled 1 + left 2
	// 98 replayed
}

// Replays the letters of a key in their order, and lets other keys go on without their letters.
func ExampleKeyOf() {
	letter := operate.Letter{Delivery: amqp.Delivery{
		Headers: amqp.Table{keys.DeadKey: "order 17", keys.DeadLine: "block 1 3-17"},
	}}
	fmt.Println(operate.KeyOf(letter), "-", operate.ErrNotBlocked)
	decide := func(ctx context.Context, operator *operate.Operator, plan topology.Plan) error {
		var state operate.OrderState
		state, err := operator.Order(ctx, plan)
		if err != nil {
			return err
		}
		for _, found := range state.BlockedKeys() {
			var key operate.OrderKey = found
			err := operator.ReleaseKey(ctx, plan, key.Key, key.Mark)
			if err != nil && !errors.Is(err, operate.ErrNotBlocked) { // another person was faster
				return err
			}
		}
		last, err := operator.FindKey(ctx, plan, "", "3-17") // however many keys wait
		if err == nil {
			_, err = operator.ReplayKey(ctx, plan, last.Key, operate.MoveOptions{})
		}
		return err
	}
	_ = decide
	// Output: order 17 - the key is not blocked by this dead letter
}
