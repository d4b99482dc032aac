package main

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

const (
	flagURL         = "url"
	flagManagement  = "management"
	flagNoPolicies  = "no-policies"
	flagPolicy      = "policy"
	flagOldPolicy   = "old-policy"
	flagStrategy    = "strategy"
	flagType        = "type"
	flagPrefix      = "prefix"
	flagReturnTo    = "return-to"
	flagDLQ         = "dlq"
	flagProvisioned = "pre-provisioned"
	flagJSON        = "json"
)

// defaultURL is RabbitMQ's own.
const defaultURL = "amqp://guest:guest@localhost:5672/"

// waits are the values of the flags that say how messages wait.
type waits struct {
	kind             topology.QueueType
	prefix, returnTo string
	delays           backoff.List // of the policy, in its order
	dead             topology.DeadLetters
}

// strategies makes a strategy from the flags for each value of --strategy.
var strategies = map[string]func(w waits) (topology.Strategy, error){
	"perqueue": func(w waits) (topology.Strategy, error) {
		return topology.PerQueue{Type: w.kind, Prefix: w.prefix, Via: w.returnTo, Dead: w.dead}, nil
	},
	"perattempt": func(w waits) (topology.Strategy, error) {
		return topology.PerAttempt{
			Delays: w.delays, Type: w.kind, Prefix: w.prefix, Via: w.returnTo, Dead: w.dead,
		}, nil
	},
	"levels": func(w waits) (topology.Strategy, error) {
		if w.returnTo != "" {
			return nil, usage("--return-to: " +
				"with levels, messages return to their queue through no exchange of yours")
		}
		return topology.Levels{Type: w.kind, Prefix: w.prefix, Dead: w.dead}, nil
	},
	"shared": func(w waits) (topology.Strategy, error) {
		return topology.Shared{Type: w.kind, Prefix: w.prefix, Via: w.returnTo, Dead: w.dead}, nil
	},
}

func strategyNames() string { return strings.Join(slices.Sorted(maps.Keys(strategies)), ", ") }

func (a app) globalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{
			Name: flagURL, Usage: "AMQP `URL` of the broker; " + defaultURL + " without it",
			Sources: cli.EnvVars("AMQP_URL"), HideDefault: true,
		},
		&cli.StringFlag{
			Name: flagManagement, Usage: "`URL` of its management API, http://user:password@host:15672: " +
				"for what AMQP cannot show",
			Sources: cli.EnvVars("MILLPOND_MANAGEMENT_URL"), HideDefault: true,
		},
		&cli.BoolFlag{
			Name: flagNoPolicies, Usage: "no policy sets delivery-limit on the queues to read: " +
				"you say so, and nothing checks it; for brokers without --management",
		},
		&cli.StringFlag{
			Name: flagPolicy, Usage: "the `DELAYS` of the queue's policy, as in 1s,10s,100s; " +
				"the default wait steps without it",
		},
		&cli.StringFlag{
			Name: flagStrategy, Usage: "how messages wait: " + strategyNames(), Value: "perqueue",
		},
		&cli.StringFlag{Name: flagType, Usage: "of the wait queues: quorum or classic", Value: "quorum"},
		&cli.StringFlag{
			Name: flagPrefix, Usage: "`PREFIX` of shared queues, where the service has set one",
		},
		&cli.StringFlag{
			Name: flagReturnTo, Usage: "`EXCHANGE` that retries pass on their way back, " +
				"where the service has named one",
		},
		&cli.StringFlag{
			Name: flagDLQ, Usage: "`NAME` of the dead-letter queue, where it is not <queue>.dlq",
		},
		&cli.BoolFlag{Name: flagProvisioned, Usage: "declare nothing, not even to compare arguments"},
		&cli.BoolFlag{Name: flagJSON, Usage: "write JSON"},
	}
}

// strategy makes the strategy that the flags name; the policy has these delays.
func (a app) strategy(c *cli.Command, delays backoff.List) (topology.Strategy, error) {
	name := c.String(flagStrategy)
	strategy, ok := strategies[name]
	if !ok {
		return nil, usage("--strategy %q is unknown: use one of %s", name, strategyNames())
	}
	w := waits{
		kind: topology.QueueType(c.String(flagType)), prefix: c.String(flagPrefix),
		returnTo: c.String(flagReturnTo), delays: delays,
	}
	if dlq := c.String(flagDLQ); dlq != "" {
		w.dead.Name = func(string) string { return dlq }
	}
	return strategy(w)
}

// delays reads the delays of --policy; nil without it.
func delays(c *cli.Command) (backoff.List, error) {
	if c.String(flagPolicy) == "" {
		return nil, nil
	}
	return delaysOf("--"+flagPolicy, c.String(flagPolicy))
}

func delaysOf(flag, texts string) (backoff.List, error) {
	var list backoff.List
	for text := range strings.SplitSeq(texts, ",") {
		d, err := time.ParseDuration(strings.TrimSpace(text))
		if err != nil || d <= 0 {
			return nil, usage("%s: %q is no delay: write 500ms, 10s, 2m, 1h30m", flag, text)
		}
		list = append(list, d)
	}
	return list, nil
}

// planOf computes a queue's plan without a broker.
func (a app) planOf(c *cli.Command, queue string) (topology.Plan, error) {
	list, err := delays(c)
	if err != nil {
		return topology.Plan{}, err
	}
	return a.planFor(c, queue, list, "")
}

// planFor computes the plan for a policy of these delays. Its errors begin with the prefix.
func (a app) planFor(
	c *cli.Command, queue string, list backoff.List, prefix string,
) (topology.Plan, error) {
	strategy, err := a.strategy(c, list)
	if err != nil {
		return topology.Plan{}, err
	}
	plan, err := strategy.Plan(queue, list)
	if err != nil {
		return plan, usage("%s%v", prefix, err)
	}
	return plan, nil
}

// open connects.
func (a app) open(ctx context.Context, c *cli.Command) (*operate.Operator, error) {
	options := []operate.Option{operate.WithName("millpond tool")}
	if url := c.String(flagManagement); url != "" {
		options = append(options, operate.WithManagement(url))
	}
	if c.Bool(flagNoPolicies) {
		options = append(options, operate.WithoutPolicyCheck())
	}
	if c.Bool(flagProvisioned) {
		options = append(options, operate.WithPreProvisioned())
	}
	return operate.Open(ctx, cmp.Or(c.String(flagURL), defaultURL), options...)
}

// with connects, calls f with the plan of a queue, and closes.
func (a app) with(
	ctx context.Context, c *cli.Command, queue string,
	f func(*operate.Operator, topology.Plan) error,
) (err error) {
	plan, err := a.planOf(c, queue)
	if err != nil {
		return err
	}
	o, err := a.open(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	return f(o, plan)
}
