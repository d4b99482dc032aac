package doctor_test

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate/doctor"
)

// Problems of the options are named before the broker is asked.
func ExampleExamine() {
	_, err := doctor.Examine(context.Background(), "amqp://guest:guest@localhost/",
		doctor.WithPatience(time.Millisecond))
	fmt.Println(err)
	// Output:
	// examine broker: WithPatience: 1ms is not from 1s to 24h
}

// A pipeline that does not deploy onto a broker that would lose messages.
func ExampleReport() {
	plan, err := topology.PlanFor(topology.PerQueue{}, "orders", backoff.List{time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	var report *doctor.Report
	report, err = doctor.Examine(context.Background(), "amqp://user:password@rabbit.internal/shop",
		doctor.WithManagement("http://user:password@rabbit.internal:15672"),
		doctor.WithPlan(plan), doctor.WithPreProvisioned(), doctor.WithAMQP(amqp.Config{}))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, check := range report.Unsafe() {
		fmt.Println(check.Name, check.Seen, check.Meaning)
	}
}

// The status of a check for a dashboard.
func ExampleStatus() {
	worst := func(checks []doctor.Check) doctor.Status {
		status := doctor.OK
		for _, c := range checks {
			switch {
			case c.Status == doctor.Differs:
				return doctor.Differs
			case c.Status == doctor.Unknown:
				status = doctor.Unknown
			}
		}
		return status
	}
	var option doctor.Option = doctor.WithPatience(4 * time.Minute)
	fmt.Println(option != nil, worst([]doctor.Check{{Status: doctor.OK}, {Status: doctor.Unknown}}))
	// Output:
	// true unknown
}
