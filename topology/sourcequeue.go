package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/seam"
)

// factsTimeout bounds the questions of Subscribe to the management API.
const factsTimeout = 3 * time.Second

// source is the queue that a subscription consumes.
type source struct {
	subscriber *Subscriber
	topic      string
	plan       Plan
	logger     watermill.LoggerAdapter
	ruled      string // the last warning about policies
	// held is how long the queue has held rejected messages at the last look that could tell; nil for
	// a queue that held none.
	held   func(count int) time.Duration
	unseen bool // logged that this cannot be told now
}

// prepare declares and checks everything that must exist before the queue is consumed.
func (s *source) prepare(
	ctx context.Context, conn *link.Conn, hold func(time.Duration) time.Duration,
) (consumer.Limits, error) {
	if s.subscriber.client.opts.provisioned {
		if err := checkExists(ctx, conn.Do, s.plan); err != nil {
			return consumer.Limits{}, err
		}
		return s.learn(ctx, conn, hold)
	}
	cfg := &s.subscriber.cfg
	err := conn.Do(ctx, func(ch *amqp.Channel) error {
		return cfg.build(ch, s.topic, s.plan.Queue)
	})
	if err != nil {
		return consumer.Limits{}, configuredError("queue", s.plan.Queue, cfg.queueArgs, err)
	}
	limits, err := s.learn(ctx, conn, hold)
	if err == nil {
		err = declare(ctx, conn.Do, s.plan, s.logger)
	}
	return limits, err
}

// canStore reports which part of the plan keeps messages from being stored.
func (s *source) canStore(ctx context.Context) error {
	client := s.subscriber.client
	if client.opts.provisioned {
		return checkExists(ctx, client.publisher.Do, s.plan)
	}
	return declare(ctx, client.publisher.Do, s.plan, watermill.NopLogger{}) // logged at the start
}

// learn asks the broker for the type and arguments of the queue, refuses a queue that loses
// messages without a trace, and logs the settings that a user should know.
func (s *source) learn(
	ctx context.Context, conn *link.Conn, hold func(time.Duration) time.Duration,
) (consumer.Limits, error) {
	client := s.subscriber.client
	asked, cancel := context.WithTimeout(ctx, factsTimeout)
	defer cancel()
	var m audit.Manager
	if ask := client.opts.management.Ask; ask != nil {
		m = ask(asked, client.linkCfg)
	}
	f, err := audit.Learn(ctx, conn.Do, s.plan.Queue, s.subscriber.cfg.queueArgs,
		audit.VersionOf(conn.Properties), m)
	var holdsNone bool
	if err == nil {
		what := fmt.Sprintf("queue %q:", s.plan.Queue)
		rejects := f.RefuseRejects(what, s.plan.Audited())
		if holdsNone = rejects != nil && s.held != nil && f.RejectsUnseen(); holdsNone {
			s.noteUnseen(rejects)
			rejects = nil
		}
		err = errors.Join(f.Refuse(what), rejects, f.RefuseOrder(what, s.plan.Audited()))
	}
	if err != nil {
		return consumer.Limits{}, err
	}
	s.unseen = s.unseen && holdsNone
	if s.held == nil || !f.RejectsUnseen() {
		s.held = f.HeldRejects()
	}
	limits := consumer.Limits{
		HoldsNone:       holdsNone,
		NackCounts:      !f.Version.AtLeast(4, 3),
		ConsumerTimeout: f.ConsumerTimeout(s.subscriber.opts.consumerTimeout, s.subscriber.cfg.arguments),
	}
	limits.Classic = f.Kind == audit.Classic
	limits.Together = s.plan.Line != ""
	limits.OneActive = f.Arguments["x-single-active-consumer"] == true || limits.Together
	limit, certain := f.DeliveryLimit()
	limits.Deliveries, limits.Unseen = limit, !certain
	switch {
	case s.plan.rejects():
		limits.Rejected = audit.Held(s.plan.RejectMin, s.plan.RejectMax)
	case s.plan.Line == "":
		limits.Rejected = s.held
	}
	vhost, _ := client.linkCfg.Vhost() // parsed before
	s.warn(f, f.Drops(s.plan.Audited(), vhost, hold(limits.ConsumerTimeout)))
	s.warnPolicies(m, f)
	return limits, nil
}

// noteUnseen logs once that the management API does not show the policies that let the queue hold
// rejected messages. Consuming goes on without them: it must not depend on a monitoring API.
func (s *source) noteUnseen(refusal error) {
	if s.unseen {
		return
	}
	s.unseen = true
	s.logger.Error("The management API does not show the policies of the queue, which held rejected "+
		"messages before: until this process connects again, failed messages wait in wait queues; "+
		"look at the API, or declare the queue with the arguments of native.Strategy", refusal, nil)
}

// warnPolicies logs which policies may lose or misdirect messages of the plan: once, and again
// when that has changed. Levels has 32 wait queues, so there is one line for each key of a policy
// and role of queues.
func (s *source) warnPolicies(m audit.Manager, f *audit.Facts) {
	if m == nil {
		return
	}
	harm, seen := m.Harm(s.plan.Audited(), f)
	said := s.ruled
	if !seen || fmt.Sprint(harm) == said {
		return
	}
	s.ruled = fmt.Sprint(harm)
	alike := map[string]int{}
	for _, h := range harm {
		alike[h.Group]++
	}
	for _, h := range harm {
		if n := alike[h.Group]; n > 0 {
			alike[h.Group] = 0
			s.logger.Error("A policy of the broker may lose or misdirect messages: exempt the queues and "+
				"exchanges of the plan from it; millpond verify lists them", nil,
				watermill.LogFields{"finding": h.Text, "alike": n - 1})
		}
	}
}

// warnLimit logs that the delivery limit is not known. It is taken for a small one then.
func (s *source) warnLimit(f *audit.Facts) {
	switch limit, certain := f.DeliveryLimit(); {
	case certain:
	case f.PolicyPending:
		s.logger.Error("Warning: the management API of WithManagement shows no policies, of which one "+
			"may set a delivery limit of the queue: look at its URL and at the user's tag; until then a "+
			"message whose process or connection has ended twice is snoozed for a second and tried alone",
			cmp.Or(f.PolicyErr, seam.ErrNotYet), nil)
	case limit == consumer.NoLimit:
		s.logger.Info("The queue has no delivery limit, but only the management API shows whether a "+
			"policy sets one: without topology.WithManagement a message whose process or connection has "+
			"ended twice is snoozed for a second and tried alone", nil)
	default:
		s.logger.Error("Warning: a delivery limit of the queue may be set that cannot be seen without "+
			"WithManagement, so it is taken for a small one: a message whose process or connection has "+
			"ended twice is snoozed for a second and tried alone", seam.ErrNotYet, nil)
	}
}

// warn logs the settings of the queue that are allowed but may lose messages: once, and again
// when they have changed.
func (s *source) warn(f *audit.Facts, d *audit.Drop) {
	hazards := f.Hazards()
	found := fmt.Sprint(f.Kind, hazards, d, s.held != nil)
	if !s.subscriber.client.warns(s.plan.Queue, "broker", found) {
		return
	}
	if s.plan.rejects() && s.subscriber.client.opts.management.Ask == nil {
		s.logger.Error("Warning: policies cannot be seen without WithManagement: a policy may end the "+
			"delayed retry of the queue, so that rejected messages come back at once, or lower its "+
			"delivery limit; use WithManagement", seam.ErrNotYet, nil)
	}
	for _, h := range hazards {
		s.logger.Error("Warning: an argument of the queue takes messages out of it", seam.ErrNotYet,
			watermill.LogFields{"argument": h.Argument, "consequence": h.Text})
	}
	switch f.Kind {
	case "":
		s.logger.Error("Warning: the type of the queue is not known, because the user may not read the "+
			"queue or its name is too long for the broker's answer; if it is a quorum queue, messages "+
			"that wait in classic queues are lost in a restart of the broker, and a delivery limit may "+
			"drop messages; use WithManagement", seam.ErrNotYet, nil)
	case audit.Classic:
		s.logger.Error("Warning: the queue is a classic one, which has no copy on another node and "+
			"counts no deliveries, so that a message that kills the process comes back forever; declare "+
			"new queues with Queue.Arguments x-queue-type quorum", seam.ErrNotYet, nil)
	}
	if f.LosesInRestarts(s.plan.Audited()) {
		s.logger.Error("Warning: messages that wait in a classic queue are lost if their wait ends "+
			"while the broker restarts, because their quorum queue is not up yet; use topology.Quorum",
			seam.ErrNotYet, nil)
	}
	if f.LosesDelayed(s.plan.Audited()) {
		s.logger.Error("Warning: messages that wait in a delayed-message exchange are lost if their "+
			"wait ends while the broker restarts, because their quorum queue is not up yet; use another "+
			"strategy, or a classic queue", seam.ErrNotYet, nil)
	}
	if s.held != nil && s.plan.Line == "" && !s.plan.rejects() {
		s.logger.Error("Warning: the queue holds rejected messages, as for native.Strategy, so its "+
			"delivery count is taken for failed attempts: a process that ends counts as one for each "+
			"message that it had; if no instance uses Native any more, set a policy with "+
			"delayed-retry-type disabled and use WithManagement", seam.ErrNotYet, nil)
	}
	if s.held == nil && s.plan.Line == "" && !s.subscriber.opts.oldInstances {
		s.warnLimit(f)
	}
	if d != nil {
		s.logger.Error("Warning: the broker drops a message of the queue silently when the message was "+
			"given back more often than the delivery limit allows, because the queue has no dead-letter "+
			"target; run the command, or if a policy already applies to the queue, add the definition to "+
			"that policy", seam.ErrNotYet,
			watermill.LogFields{
				"limit": d.Limit, "unless": d.Unless, "missing": d.Missing,
				"command": d.Command, "safe_for": d.Endures,
			})
	}
}
