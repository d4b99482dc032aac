package discover_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
	"github.com/millpond-go/millpond/topology/operate/discover"
)

// The URL of the broker is enough to see everything and to act on it.
func ExampleFind() {
	ctx := context.Background()
	const url = "amqps://user:password@rabbit.example.com/shop"
	address, err := discover.ManagementURL(url, false)
	if err != nil {
		log.Fatal(err)
	}
	operator, err := operate.Open(ctx, url, operate.WithManagement(address))
	if err != nil {
		log.Fatal(err)
	}
	found, err := discover.Find(ctx, address, "shop",
		discover.WithTLS(&tls.Config{MinVersion: tls.VersionTLS13}),
		discover.WithCluster(operator.Cluster()), discover.WithLooks(operator),
		discover.WithCounts(operator))
	if err != nil {
		log.Fatal(err)
	}
	if found.Empty() {
		fmt.Printf("millpond has nothing in vhost %q\n", found.Name)
	}
	for _, m := range found.Mains {
		report, err := operator.Inspect(ctx, m.Plan)
		fmt.Println(report, err)
	}
	for _, unclear := range found.Unclear {
		fmt.Println(unclear)
	}
	fmt.Println(operator.Close())
}

// The management API is looked for beside the broker. A password never leaves this machine
// unencrypted, unless that is asked for.
func ExampleManagementURL() {
	fmt.Println(discover.ManagementURL("amqps://shop:secret@rabbit.example.com/", false))
	fmt.Println(discover.ManagementURL("amqp://localhost/", false))
	_, err := discover.ManagementURL("amqp://shop:secret@rabbit.example.com/", false)
	fmt.Println(strings.ReplaceAll(err.Error(), ", ", ",\n"))
	// Output:
	// https://shop:secret@rabbit.example.com:15671 <nil>
	// http://guest:guest@localhost:15672 <nil>
	// management API: the AMQP URL of host "rabbit.example.com" is not encrypted,
	// and http would send the password in the clear: name an https address,
	// as in https://user:password@rabbit.example.com:15671,
	// or ask for plain http
}

// A main queue as Find returns it, in the words of a tool.
func ExampleVhost() {
	management := func(n int) operate.Count {
		return operate.Count{N: n, Source: operate.SourceManagement}
	}
	wait := discover.Wait{
		Queue: discover.Queue{Name: "orders.wait.1m", Type: topology.Quorum, Ready: management(3)},
		Delay: time.Minute, Strategy: discover.PerQueue,
	}
	found := discover.Vhost{
		Name: "shop",
		Mains: []discover.Main{{
			Queue: discover.Queue{Name: "orders"}, Waits: []discover.Wait{wait},
			Dead: []discover.Dead{{
				Queue: discover.Queue{Name: "orders.dlq", Ready: management(2)}, Evidence: discover.ByName,
			}},
			Clients: []discover.Client{{Tag: "ctag1", User: "shop"}}, Vias: []string{"events"},
		}},
		Orphans: []discover.Orphan{{Wait: wait, For: "mail", Why: `queue "mail" does not exist`}},
		Unclear: []discover.Unclear{{Queue: "orders", Text: "the policies could not be seen"}},
	}
	m, ok := found.Main("orders")
	fmt.Println(ok, m.Strategies(), m.Waits[0].Ready, m.Dead[0].Name, m.Dead[0].Evidence)
	fmt.Println(found.Empty(), found.Orphans[0].Why, found.Unclear[0].String())
	// Output:
	// true [PerQueue] 3 (management) orders.dlq name
	// false queue "mail" does not exist the policies could not be seen
}

// The user says which queue keeps the dead letters of a queue.
func ExampleVhost_WithDead() {
	found := discover.Vhost{Name: "shop"}
	main := discover.Main{Queue: discover.Queue{Name: "orders"}}
	_, err := found.WithDead(main, "letters")
	fmt.Println(err)
	// Output:
	// discover: vhost "shop" has no queue "letters" that could keep the dead letters of queue "orders"
}

// An address that is none is refused. No error quotes the password.
func ExampleFind_refused() {
	_, err := discover.Find(context.Background(), "amqp://shop:secret@rabbit.example.com", "/")
	fmt.Println(err)
	// Output:
	// discover: the URL must begin with http:// or https://
}

// Words for tools.
func ExampleStrategy() {
	var strategy discover.Strategy = discover.PerQueue
	var evidence discover.Evidence = discover.ByName
	fmt.Println(strategy, evidence)
	fmt.Println(discover.PerQueue, discover.PerAttempt, discover.Shared, discover.Levels,
		discover.InOrder, discover.Unknown)
	fmt.Println(discover.ByName, discover.ByLetter, discover.ByArgument, discover.ByPolicy)
	var option discover.Option = discover.WithTLS(nil)
	fmt.Println(option != nil)
	// Output:
	// PerQueue name
	// PerQueue PerAttempt Shared Levels InOrder unknown
	// name letter argument policy
	// true
}
