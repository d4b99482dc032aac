package overview

import (
	"context"

	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// Verify verifies a plan, and adds what a view of its vhost does not know of the queue. If the view
// has no plan for the queue that could be verified, Verify says so, and counts. seen may be nil.
func Verify(
	ctx context.Context, o *operate.Operator, seen *operate.View, plan topology.Plan,
) (operate.Report, error) {
	if seen == nil {
		return o.Verify(ctx, plan)
	}
	var unclear []operate.Finding
	unchecked := operate.Finding{
		Severity: operate.Warning, Problem: operate.Unchecked, Kind: "queue", Name: plan.Queue,
	}
	for _, u := range seen.Unclear {
		f := unchecked
		f.Text = u.Text
		switch u.Queue {
		case plan.Queue:
			unclear = append(unclear, f)
		case "":
			f.Kind, f.Name = "broker", ""
			unclear = append(unclear, f)
		}
	}
	main, ok := seen.Main(plan.Queue)
	if !ok || main.PlanErr == nil || plan.Dead.Exchange != main.Plan.Dead.Exchange ||
		plan.Dead.RoutingKey != main.Plan.Dead.RoutingKey {
		report, err := o.Verify(ctx, plan)
		report.Findings = append(report.Findings, unclear...)
		return report, err
	}
	unchecked.Severity, unchecked.Text = operate.Critical,
		"nothing else was checked: "+main.PlanErr.Error()
	if len(main.Dead) == 0 {
		unchecked.Severity, unchecked.Text = operate.Warning, "nothing else was checked, because its "+
			"dead-letter queue is not known: name it with --dlq"
	}
	report, err := o.Inspect(ctx, plan)
	unclear = append(unclear, unchecked)
	report.Findings = unclear
	return report, err
}
