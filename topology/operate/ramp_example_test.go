package operate_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// A replay of all letters of an outage: three first, then ten, a hundred, and the rest.
func ExampleOperator_Ramp() {
	var operator *operate.Operator // of Open
	ctx := context.Background()
	plan, err := topology.PlanFor(topology.PerQueue{}, "orders", backoff.List{time.Second})
	if err != nil {
		log.Print(err)
		return
	}
	options := operate.RampOptions{
		ReplayOptions: operate.ReplayOptions{
			Filter: operate.Filter{Error: "connection refused"}, Rate: 50,
		},
		Canary: 3, Steps: []int{10, 100}, StopAt: 0.05,
		Report: func(r operate.RampResult) { log.Print(r.Step, ": ", r.Replayed(), " replayed") },
	}
	var rehearsal operate.Rehearsal
	rehearsal, err = operator.Rehearse(ctx, plan, options)
	if err != nil {
		log.Print(err)
		return
	}
	for _, f := range rehearsal.Findings {
		if f.Problem == operate.Unconsumed || f.Problem == operate.Forbidden {
			log.Print(f)
			return
		}
	}
	result, err := operator.Ramp(ctx, plan, options)
	log.Print(result)
	switch {
	case errors.Is(err, operate.ErrStopped):
		log.Print("the cause is not gone: ", err)
	case errors.Is(err, operate.ErrUnsettled):
		log.Print("look at the service: ", err)
	case err != nil:
		log.Print(err)
	}
	// By itself, beside the service: the canary every ten minutes until it is handled, then the rest.
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
