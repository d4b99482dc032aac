package operate_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// The URL of the broker is enough to see everything and to act on it.
func ExampleOperator_View() {
	ctx := context.Background()
	const url = "amqps://user:password@rabbit.example.com/shop"
	address, err := operate.ManagementURL(url, false)
	if err != nil {
		log.Fatal(err)
	}
	operator, err := operate.Open(ctx, url, operate.WithManagement(address))
	if err != nil {
		log.Fatal(err)
	}
	view, err := operator.View(ctx, operate.ViewOptions{Exact: true, Owners: true})
	if err != nil {
		log.Fatal(err)
	}
	if view.Empty() {
		fmt.Printf("millpond has nothing in vhost %q\n", view.Vhost)
	}
	for _, m := range view.Mains {
		report, err := operator.Verify(ctx, m.Plan)
		fmt.Println(report, report.Findings, err)
	}
	for _, unclear := range view.Unclear {
		fmt.Println(unclear)
	}
	fmt.Println(operator.Close())
}

// Without AMQP the management API shows the rest, and must be named.
func ExampleManagementView() {
	_, err := operate.ManagementView(context.Background(), "amqp://localhost/shop")
	fmt.Println(strings.ReplaceAll(err.Error(), ": ", ":\n"))
	// Output:
	// look at vhost "shop":
	// only the management API shows its queues:
	// name the management API (WithManagement, --management)
}

// The management API is looked for beside the broker. A password never leaves this machine
// unencrypted, unless that is asked for.
func ExampleManagementURL() {
	fmt.Println(operate.ManagementURL("amqps://shop:secret@rabbit.example.com/", false))
	fmt.Println(operate.ManagementURL("amqp://localhost/", false))
	_, err := operate.ManagementURL("amqp://shop:secret@rabbit.example.com/", false)
	fmt.Println(strings.ReplaceAll(err.Error(), ", ", ",\n"))
	// Output:
	// https://shop:secret@rabbit.example.com:15671 <nil>
	// http://guest:guest@localhost:15672 <nil>
	// management API: the AMQP URL of host "rabbit.example.com" is not encrypted,
	// and http would send the password in the clear: name an https address,
	// as in https://user:password@rabbit.example.com:15671,
	// or ask for plain http
}

// A queue as View returns it, in the words of a tool.
func ExampleView() {
	management := func(n int) operate.Count {
		return operate.Count{N: n, Source: operate.SourceManagement}
	}
	wait := operate.Wait{Strategy: operate.PerQueue, Queue: operate.Queue{
		Name: "orders.wait.1m", Type: topology.Quorum, Delay: time.Minute, Ready: management(3),
	}}
	letters := operate.Dead{
		Evidence: operate.ByName, Queue: operate.Queue{Name: "orders.dlq", Ready: management(2)},
	}
	view := operate.View{
		Vhost: "shop",
		Mains: []operate.Main{{
			Queue: operate.Queue{Name: "orders"}, Waits: []operate.Wait{wait},
			Dead: []operate.Dead{letters}, Vias: []string{"events"},
		}},
		Orphans: []operate.Orphan{{Wait: wait, For: "mail", Why: `queue "mail" does not exist`}},
		Brakes:  []operate.Brake{{Name: "payments", Queues: []string{"mail", "orders"}}},
		Unclear: []operate.Unclear{{Queue: "orders", Text: "the policies could not be seen"}},
	}
	fmt.Println(view.QueuesOf("payments"))
	m, ok := view.Main("orders")
	var strategies []operate.Strategy = m.Strategies()
	fmt.Println(ok, strategies, m.Waits[0].Ready, m.Dead[0].Name, m.Dead[0].Evidence)
	fmt.Println(view.Empty(), view.Orphans[0].Why, view.Unclear[0].String())
	// All that a queue may be known by, and all strategies.
	fmt.Println([]operate.Evidence{
		operate.ByName, operate.ByLetter, operate.ByArgument, operate.ByPolicy,
	}, operate.PerQueue, operate.PerAttempt, operate.Shared, operate.Levels, operate.InOrder,
		operate.Unknown)
	// Output:
	// [mail orders]
	// true [PerQueue] 3 (management) orders.dlq name
	// false queue "mail" does not exist the policies could not be seen
	// [name letter argument policy] PerQueue PerAttempt Shared Levels InOrder unknown
}

// All that is wrong, the most urgent first.
func ExampleView_Incidents() {
	counted := func(n int) operate.Count {
		return operate.Count{N: n, Source: operate.SourceManagement}
	}
	view := operate.View{Mains: []operate.Main{{ // as Operator.View returns it
		Queue: operate.Queue{Name: "orders", Ready: counted(12), Consumers: counted(0)},
		Dead:  make([]operate.Dead, 1), DeadLetters: counted(2),
	}}}
	var all []operate.Incident = view.Incidents(operate.IncidentOptions{})
	for _, i := range all {
		fmt.Println(i.Urgency, i.Kind, i.Queue, i.Text)
	}
	fmt.Println([]operate.IncidentKind{
		operate.IncidentPolicy, operate.IncidentGone, operate.IncidentUnconsumed,
		operate.IncidentStranded, operate.IncidentAstray, operate.IncidentHeld,
		operate.IncidentBlocked, operate.IncidentLine, operate.IncidentDead, operate.IncidentBrake,
		operate.IncidentUnknown,
	})
	// Output:
	// 2 unconsumed orders no consumer for 12 ready messages
	// 7 dead orders 2 dead letters
	// [policy gone unconsumed stranded astray held blocked line dead brake unknown]
}

// Messages wait for a queue that does not exist any more.
func ExampleView_GoneOf() {
	view := operate.View{} // as Operator.View returns it
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	view.Gone = view.GoneOf([]operate.Waiter{ // as Operator.Waiting returns them
		{Queue: "mail", WaitQueue: "millpond.wait.1h", Due: noon.Add(time.Hour)},
		{Queue: "mail", WaitQueue: "millpond.wait.1h", Due: noon},
	})
	for _, gone := range view.Gone {
		fmt.Println(strings.ReplaceAll(gone.String(), "; ", ";\n"))
	}
	fmt.Println(view.Announces(operate.Orphan{For: "mail"}))
	var worst operate.Fate = operate.Gone{Fate: operate.FateLost}.Fate
	fmt.Println(worst, operate.FateHeld, operate.FateStranded)
	// Output:
	// 2 messages wait for queue "mail", which is gone: the first returns at 2026-03-01 12:00:00Z;
	// start its service before, which declares the queue;
	// later, millpond stranded return moves them, and --to names another queue
	// true
	// lost held stranded
}

// The user says which queue keeps the dead letters of a queue.
func ExampleView_WithDead() {
	view := operate.View{Vhost: "shop"}
	main := operate.Main{Queue: operate.Queue{Name: "orders"}}
	_, err := view.WithDead(main, "letters")
	fmt.Println(err)
	// Output:
	// vhost "shop" has no queue "letters" that could keep the dead letters of queue "orders"
}
