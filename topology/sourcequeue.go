package topology

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/link"
)

// factsTimeout bounds the questions of Subscribe to the management API.
const factsTimeout = 3 * time.Second

// source is the queue that a subscription consumes.
type source struct {
	subscriber *Subscriber
	topic      string
	plan       Plan
	logger     watermill.LoggerAdapter
	warned     string // the last warning about the queue
	ruled      string // the last warning about policies
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
	m := client.manager(asked)
	f, err := learn(ctx, conn.Do, s.plan.Queue, s.subscriber.cfg.queueArgs, serverVersion(conn), m)
	if err == nil {
		err = f.refuse(fmt.Sprintf("queue %q:", s.plan.Queue))
	}
	if err != nil {
		return consumer.Limits{}, err
	}
	limits := consumer.Limits{
		NackCounts:      !f.version.atLeast(4, 3),
		ConsumerTimeout: f.consumerTimeout(s.subscriber.opts.consumerTimeout, s.subscriber.cfg.arguments),
	}
	limits.Deliveries, _ = f.deliveryLimit()
	vhost, _ := client.linkCfg.Vhost() // parsed before
	s.warn(f, f.drops(s.plan, vhost, hold(limits.ConsumerTimeout)))
	s.warnPolicies(m, f, vhost)
	return limits, nil
}

// defaultConsumerTimeout is how long RabbitMQ lets a consumer keep a delivery by default
// (F16).
const defaultConsumerTimeout = 30 * time.Minute

// consumerTimeout returns the broker's consumer timeout as far as it is known. said is the
// value of the option, 0 for none; consume are the arguments of the consumer. A queue has its
// own timeout from RabbitMQ 4.0 on, a consumer from 4.3 on (F33). The timeout of the node is
// shown nowhere.
func (f *queueFacts) consumerTimeout(said time.Duration, consume amqp.Table) time.Duration {
	if said > 0 {
		return said
	}
	timeout := consumer.MaxHold
	consider := func(value any) {
		if ms, ok := wholeNumber(value); ok && ms > 0 {
			timeout = min(timeout, time.Duration(min(ms, consumer.MaxHold.Milliseconds()))*time.Millisecond)
		}
	}
	if f.version.atLeast(4, 0) {
		consider(f.arguments["x-consumer-timeout"])
		consider(f.policy["consumer-timeout"])
	}
	if f.version.atLeast(4, 3) {
		consider(consume["x-consumer-timeout"])
	}
	if timeout == consumer.MaxHold {
		return defaultConsumerTimeout
	}
	return timeout
}

// defaultDeliveryLimit is the limit of a quorum queue from RabbitMQ 4.0 on (F2).
const defaultDeliveryLimit = 20

// times returns n times d, or the longest duration there is.
func times(n int, d time.Duration) time.Duration {
	if d > 0 && time.Duration(n) > math.MaxInt64/d {
		return math.MaxInt64
	}
	return time.Duration(n) * d
}

// warnPolicies logs which policies may lose or misdirect messages of the plan: once, and again
// when that has changed. Levels has 32 wait queues, so there is one line for each key of a policy
// and role of queues.
func (s *source) warnPolicies(m *manager, f *queueFacts, vhost string) {
	list := m.policies()
	if list == nil {
		return
	}
	known := map[string]knownQueue{}
	if f.kind != "" {
		known[s.plan.Queue] = knownQueue{f.kind, f.arguments}
	}
	findings, _ := list.judge(s.plan.subjects(known, f.version), vhost)
	findings = slices.DeleteFunc(findings,
		func(f policyFinding) bool { return f.Severity != Critical })
	said := s.ruled
	if s.ruled = fmt.Sprint(findings); s.ruled == said {
		return
	}
	alike := map[string]int{}
	for _, finding := range findings {
		alike[finding.group]++
	}
	for _, finding := range findings {
		if n := alike[finding.group]; n > 0 {
			alike[finding.group] = 0
			s.logger.Error("A policy of the broker may lose or misdirect messages: exempt the queues and "+
				"exchanges of the plan from it; millpond verify lists them", nil,
				watermill.LogFields{"finding": finding.String(), "alike": n - 1})
		}
	}
}

// warn logs the settings of the queue that are allowed but may lose messages: once, and again
// when they have changed.
func (s *source) warn(f *queueFacts, d *drop) {
	hazards := f.hazards()
	said := s.warned
	if s.warned = fmt.Sprint(f.kind, hazards, d); s.warned == said {
		return
	}
	for _, h := range hazards {
		s.logger.Info("Warning: an argument of the queue takes messages out of it",
			watermill.LogFields{"argument": h.argument, "consequence": h.text})
	}
	switch f.kind {
	case "":
		s.logger.Info("Warning: the type of the queue is not known, because the user may not read the "+
			"queue or its name is too long for the broker's answer; if it is a quorum queue, messages "+
			"that wait in classic queues are lost in a restart of the broker, and a delivery limit may "+
			"drop messages; use WithManagement", nil)
	case Classic:
		s.logger.Info("Warning: the queue is a classic one, which has no copy on another node and "+
			"counts no deliveries, so that a message that kills the process comes back forever; declare "+
			"new queues with Queue.Arguments x-queue-type quorum", nil)
	}
	if f.losesInRestarts(s.plan) {
		s.logger.Info("Warning: messages that wait in a classic queue are lost if their wait ends "+
			"while the broker restarts, because their quorum queue is not up yet; use topology.Quorum", nil)
	}
	if d != nil {
		s.logger.Info("Warning: the broker drops a message of the queue silently when the message was "+
			"given back more often than the delivery limit allows, because the queue has no dead-letter "+
			"target; run the command, or if a policy already applies to the queue, add the definition to "+
			"that policy",
			watermill.LogFields{"limit": d.limit, "unless": d.unless, "missing": d.missing,
				"command": d.command, "safe_for": d.endures})
	}
}
