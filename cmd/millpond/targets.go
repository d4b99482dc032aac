package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/native"
	"github.com/millpond-go/millpond/topology/operate"
)

const (
	// lookLimit bounds the look at a virtual host.
	lookLimit = 60 * time.Second
	// guessLimit is the same where --management does not name the API.
	guessLimit = 15 * time.Second
	// lookBehind is how often status --watch looks at messages that wait, to find their queues.
	lookBehind = 5 * time.Minute
)

// session is a connection, and the queues that were found in the virtual host.
type session struct {
	app
	c        *cli.Command
	operator *operate.Operator
	api      string            // URL of the management API; may be empty
	vhost    *operate.View     // nil: only the flags say how messages wait
	blind    error             // why vhost is nil
	plans    []topology.Plan   // of all queues that the command works on
	several  bool              // whether plans has more than one
	said     []operate.Finding // about the broker: the same for each queue
}

// open connects, and asks the management API which queues there are.
func (a app) open(ctx context.Context, c *cli.Command) (s *session, err error) {
	s = &session{app: a, c: c}
	s.api, s.blind = managementOf(c)
	if s.operator, err = a.connect(ctx, c, s.api); err != nil || s.blind != nil {
		return s, err
	}
	limit := lookLimit
	if c.String(flagManagement) == "" {
		limit = guessLimit
	}
	look, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if s.blind = s.find(look); s.blind == nil || c.String(flagManagement) != "" {
		return s, nil
	}
	s.api = "" // it was a try
	_ = s.operator.Close()
	s.operator, err = a.connect(ctx, c, s.api)
	return s, err
}

// find finds the queues of the virtual host. Where a dead-letter queue is not known, its letters
// may tell it.
func (s *session) find(ctx context.Context) error {
	status := s.c.Name == "status"
	all := status && s.c.NArg() == 0
	options := operate.ViewOptions{
		Exact: all, Brakes: status, Last: s.last, Keys: status,
		Trouble: all && s.last != nil && time.Since(s.last.Looked) > lookBehind,
	}
	found, err := s.operator.View(ctx, options)
	if err == nil && slices.ContainsFunc(found.Mains, deadUnknown) && len(found.Unclaimed) > 0 {
		options.Owners = true
		found, err = s.operator.View(ctx, options)
	}
	if err == nil {
		s.vhost = &found
		if s.last != nil {
			*s.last = found
		}
	}
	return err
}

func deadUnknown(m operate.Main) bool { return len(m.Dead) == 0 }

// managementOf returns the URL of the management API. The error says why there is none.
func managementOf(c *cli.Command) (api string, err error) {
	switch {
	case c.Bool(flagNoManagement):
		return "", errors.New("--" + flagNoManagement + " was given")
	case c.String(flagManagement) != "":
		return c.String(flagManagement), nil
	}
	return operate.ManagementURL(addressOf(c), false)
}

func addressOf(c *cli.Command) string { return cmp.Or(c.String(flagURL), defaultURL) }

// connect opens an operator. api may be empty.
func (a app) connect(ctx context.Context, c *cli.Command, api string) (*operate.Operator, error) {
	options := []operate.Option{operate.WithName("millpond tool")}
	if api != "" {
		options = append(options, operate.WithManagement(api))
	}
	if c.Bool(flagNoPolicies) {
		options = append(options, operate.WithoutPolicyCheck())
	}
	if c.Bool(flagProvisioned) {
		options = append(options, operate.WithPreProvisioned())
	}
	return operate.Open(ctx, addressOf(c), options...)
}

// planned connects, calls f with the plan that the flags make, and closes.
func (a app) planned(
	ctx context.Context, c *cli.Command, queue string, f func(*session, topology.Plan) error,
) error {
	plan, err := a.planOf(c, queue, flagPolicy)
	if err != nil {
		return err
	}
	return a.opened(ctx, c, func(s *session) error { return f(s, plan) })
}

// opened connects, calls f, and closes.
func (a app) opened(ctx context.Context, c *cli.Command, f func(*session) error) (err error) {
	s, err := a.open(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.operator.Close()) }()
	return f(s)
}

// each calls f for each of the named queues, or for all that were found if none is named. An error
// of one queue does not stop the others. A message that is not in one of several queues may be in
// another.
func (a app) each(
	ctx context.Context, c *cli.Command, queues []string, f func(*session, topology.Plan) error,
) error {
	return a.opened(ctx, c, func(s *session) error {
		plans, err := s.plansOf(queues)
		if err != nil {
			return err
		}
		return s.each(ctx, plans, func(plan topology.Plan) error { return f(s, plan) })
	})
}

// each calls f for each plan, with the name of its queue above its output if there are several.
func (s *session) each(
	ctx context.Context, plans []topology.Plan, f func(topology.Plan) error,
) error {
	s.plans, s.several = plans, len(plans) > 1
	var errs []error
	for _, plan := range plans {
		if s.several && !s.c.Bool(flagJSON) {
			fmt.Fprintf(s.told(s.c), "%s:\n", harmless(plan.Queue))
		}
		errs = append(errs, f(plan))
		if ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
	}
	return worst(errs)
}

// worst joins errors. If one of them is nil, it leaves out each notThere.
func worst(errs []error) error {
	done := slices.Contains(errs, nil)
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool {
		var none *notThere
		return done && errors.As(err, &none)
	})...)
}

// told is where sentences for people go: not between lines that a program reads.
func (a app) told(c *cli.Command) io.Writer {
	if c.Name == "export" || c.Bool(flagJSON) {
		return a.err
	}
	return a.out
}

// plansOf returns the plans of the named queues, or of all that were found if none is named.
func (s *session) plansOf(queues []string) ([]topology.Plan, error) {
	if s.vhost == nil {
		return s.assumed(queues)
	}
	if len(queues) == 0 {
		if queues = mainNames(s.vhost); len(queues) == 0 {
			s.nothingFound()
		}
	}
	queues = distinct(queues)
	plans := make([]topology.Plan, len(queues))
	for i, queue := range queues {
		main, ok := s.vhost.Main(queue)
		if !ok {
			return nil, s.unknownQueue(queue)
		}
		plans[i] = main.Plan
		if err := s.agree(main, &plans[i]); err != nil {
			return nil, err
		}
	}
	return plans, nil
}

// assumed returns the plans that the flags make, and says that nothing proves them.
func (s *session) assumed(queues []string) ([]topology.Plan, error) {
	if len(queues) == 0 {
		return nil, usage("name the queues, or the management API with --%s, because AMQP cannot "+
			"list them and the API cannot be asked: %v", flagManagement, s.blind)
	}
	queues = distinct(queues)
	plans := make([]topology.Plan, len(queues))
	for i, queue := range queues {
		var err error
		if plans[i], err = s.planOf(s.c, queue, flagPolicy); err != nil {
			return nil, err
		}
	}
	if !s.c.Bool(flagNoManagement) {
		fmt.Fprintf(s.err, "millpond: the management API cannot be asked: %v\n", s.blind)
	}
	for _, plan := range plans {
		names := namesOf(plan.Queues, func(q topology.Queue) string { return harmless(q.Name) })
		fmt.Fprintf(s.err, "millpond: without the management API these are taken for the queues of "+
			"%q: %s\n", plan.Queue, strings.Join(names, ", "))
	}
	if s.guesses() && !strings.Contains(s.c.FullName(), " dead ") {
		fmt.Fprintln(s.err, guessed)
	}
	return plans, nil
}

const guessed = "millpond: without --policy the tool assumes the default wait steps; " +
	"name the delays of the service's policy"

// namesOf returns a name for each of a list.
func namesOf[T any](list []T, name func(T) string) []string {
	names := make([]string, len(list))
	for i, one := range list {
		names[i] = name(one)
	}
	return names
}

// guesses reports whether the wait queues of a plan are a guess: nothing but the flags says which
// there are, and --policy is missing.
func (s *session) guesses() bool {
	strategy := s.c.String(flagStrategy)
	return s.vhost == nil && s.c.String(flagPolicy) == "" && strategy != "levels" &&
		strategy != "delayed" && strategy != inOrderStrategy
}

// found returns a queue with its wait queues. It is false if no such queue was found.
func (s *session) found(queue string) (operate.Main, bool) {
	if s.vhost == nil {
		return operate.Main{}, false
	}
	return s.vhost.Main(queue)
}

// nothingFound says that no queue with retries was found, and everything that is not known.
func (s *session) nothingFound() {
	fmt.Fprintf(s.told(s.c), "virtual host %q: no queue with wait queues of millpond was found\n",
		s.vhost.Vhost)
	s.notKnown(s.told(s.c))
}

// distinct returns each name once.
func distinct(names []string) (list []string) {
	for _, name := range names {
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

// unknownQueue is the error about a queue for which no other queue waits.
func (s *session) unknownQueue(queue string) error {
	word := audit.ShellWord(queue)
	see := "millpond stranded list " + word
	if s.c.FullName() != "millpond waiting list" { // which has found none
		see = "millpond waiting list " + word + ", " + see
	}
	return usage("there is no queue %q with retries in virtual host %q, or it was never declared; "+
		"messages for it may wait or be stranded: %s; queues with retries: %s",
		queue, s.vhost.Vhost, see, cmp.Or(some(mainNames(s.vhost)), "none"))
}

// candidates names queues that may keep dead letters of any queue.
func (s *session) candidates() string {
	if len(s.vhost.Unclaimed) == 0 {
		return ""
	}
	return "; it may be one of " + some(namesOf(s.vhost.Unclaimed, queueName))
}

// some names the first of many queues.
func some(names []string) string {
	text := harmless(strings.Join(names[:min(len(names), maxNamed)], ", "))
	if more := len(names) - maxNamed; more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return text
}

// maxNamed is the most queues that an error names.
const maxNamed = 10

// agree compares the flags that were given with the broker's queues. Only --dlq adds something.
func (s *session) agree(main operate.Main, plan *topology.Plan) error {
	list, err := delays(s.c, flagPolicy)
	if err != nil {
		return err
	}
	strategy, err := s.strategy(s.c, list)
	if err != nil {
		return err
	}
	holds, isNative := strategy.(native.Strategy)
	if isNative { // no wait queue shows how long the queue must hold messages
		plan.RejectMin, plan.RejectMax = holds.Min, holds.Max
	}
	strategies := namesOf(main.Strategies(), func(name operate.Strategy) string {
		return strings.ToLower(string(name))
	})
	waits := namesOf(main.Waits, func(w operate.Wait) string {
		return fmt.Sprintf("%s (%s)", harmless(w.Name), w.Delay)
	})
	has := func(is func(operate.Wait) bool) bool { return slices.ContainsFunc(main.Waits, is) }
	named := func(name string) bool { return strings.HasPrefix(name, s.c.String(flagPrefix)+".") }
	anyDelay := isNative || main.Line != nil || main.Plan.Levels != nil
	for _, differs := range []struct {
		flag  string
		is    bool
		found []string
	}{
		{flagPolicy, !anyDelay && slices.ContainsFunc(list, func(d time.Duration) bool {
			return !has(func(w operate.Wait) bool { return w.Delay == d })
		}), waits},
		{flagStrategy, !isNative && !slices.Contains(strategies, s.c.String(flagStrategy)) &&
			!slices.Contains(strategies, string(operate.Unknown)), append(strategies, waits...)},
		{flagType, len(waits) > 0 && !has(func(w operate.Wait) bool {
			return string(w.Type) == s.c.String(flagType)
		}), waits},
		{flagPrefix, !slices.ContainsFunc(plan.Queues, func(q topology.Queue) bool {
			return named(q.Name)
		}) && !slices.ContainsFunc(plan.Exchanges, func(e topology.Exchange) bool {
			return named(e.Name)
		}), waits},
		{flagReturnTo, slices.ContainsFunc(s.c.StringSlice(flagReturnTo), func(to string) bool {
			return !slices.Contains(main.Vias, to)
		}), main.Vias},
	} {
		if s.c.IsSet(differs.flag) && differs.is {
			return usage("--%s %s: the broker has another for queue %q: %s; leave the flag out, or use "+
				"--%s to go by the flags alone", differs.flag,
				cmp.Or(s.c.String(differs.flag), strings.Join(s.c.StringSlice(differs.flag), " ")),
				main.Name, cmp.Or(harmless(strings.Join(differs.found, ", ")), "none"), flagNoManagement)
		}
	}
	if dlq := s.c.String(flagDLQ); dlq != "" && plan.Dead.RoutingKey != dlq {
		if *plan, err = s.vhost.WithDead(main, dlq); err != nil {
			return usage("--%s %s: %v", flagDLQ, dlq, err)
		}
	}
	return nil
}

// mainNames are the names of the queues with retries.
func mainNames(found *operate.View) []string {
	return namesOf(found.Mains, func(m operate.Main) string { return m.Name })
}

func queueName(q operate.Queue) string { return q.Name }

// completeQueues offers the names of the queues that are found.
func (a app) completeQueues(ctx context.Context, c *cli.Command) { a.complete(ctx, c, mainNames) }

// complete offers names of the virtual host that are no arguments yet.
func (a app) complete(
	ctx context.Context, c *cli.Command, namesOf func(*operate.View) []string,
) {
	cli.DefaultCompleteWithFlags(ctx, c)
	ctx, cancel := context.WithTimeout(ctx, completeLimit)
	defer cancel()
	s, err := a.open(ctx, c)
	if err != nil {
		return // a completion has no place for an error
	}
	defer func() { _ = s.operator.Close() }()
	if s.vhost == nil {
		return
	}
	for _, name := range namesOf(s.vhost) {
		if !slices.Contains(c.Args().Slice(), name) {
			fmt.Fprintln(a.out, harmless(name))
		}
	}
}

// completeLimit bounds the look of a completion.
const completeLimit = 3 * time.Second
