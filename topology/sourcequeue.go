package topology

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/internal/link"
)

// factsTimeout bounds what Subscribe asks of the management API.
const factsTimeout = 3 * time.Second

// learn asks what the queue is, refuses one that loses messages without a trace,
// and says what should be known of it.
func (s *subscription) learn(ctx context.Context, conn *link.Conn) error {
	client := s.subscriber.client
	asked, cancel := context.WithTimeout(ctx, factsTimeout)
	defer cancel()
	m := client.manager(asked)
	f, err := learn(ctx, conn.Do, s.plan.Queue, s.subscriber.cfg.queueArgs, serverVersion(conn), m)
	if err != nil {
		return err
	}
	s.facts.Store(f)
	if err := f.refuse(fmt.Sprintf("queue %q:", s.plan.Queue)); err != nil {
		return err
	}
	vhost, _ := client.linkCfg.Vhost() // parsed before
	s.warn(f, f.drops(s.plan, vhost, s.hold(f)))
	s.warnPolicies(m, f, vhost)
	return nil
}

// warnPolicies logs which policies may lose or misdirect messages of the plan, once and
// again only when that has changed: one line for each key of a policy and role of queues,
// because Levels has 32 wait queues.
func (s *subscription) warnPolicies(m *manager, f *queueFacts, vhost string) {
	list := m.policies()
	if list == nil {
		return
	}
	known := map[string]knownQueue{}
	if f.kind != "" {
		known[s.plan.Queue] = knownQueue{f.kind, f.arguments}
	}
	findings, _ := list.judge(s.plan.subjects(known, f.version), vhost)
	findings = slices.DeleteFunc(findings, func(f policyFinding) bool { return f.Severity != Critical })
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
			s.logger.Error("A policy of the broker may lose or misdirect messages: exempt the queues and exchanges of the plan from it, which millpond verify lists", nil,
				watermill.LogFields{"finding": finding.String(), "alike": n - 1})
		}
	}
}

// warn logs what is allowed but should be known of the queue, again only when it has
// changed.
func (s *subscription) warn(f *queueFacts, d *drop) {
	hazards := f.hazards()
	said := s.warned
	if s.warned = fmt.Sprint(f.kind, hazards, d); s.warned == said {
		return
	}
	for _, h := range hazards {
		s.logger.Info("Warning: an argument of the queue takes messages out of it", watermill.LogFields{"argument": h.argument, "consequence": h.text})
	}
	switch f.kind {
	case "":
		s.logger.Info("Warning: the type of the queue is not known, because the user may not read it or its name is too long for the broker's answer; "+
			"if it is a quorum queue, messages that wait in classic queues are lost in a restart of the broker, and a delivery limit may drop messages; "+
			"use WithManagement", nil)
	case Classic:
		s.logger.Info("Warning: the queue is a classic one, which has no copy on another node and counts no deliveries, "+
			"so that a message that kills the process comes back for ever; "+
			"a new queue is better declared with Queue.Arguments x-queue-type quorum", nil)
	}
	if f.losesInRestarts(s.plan) {
		s.logger.Info("Warning: messages that wait in a classic queue are lost if their wait ends while the broker restarts, "+
			"because their quorum queue is not there yet; use topology.Quorum", nil)
	}
	if d != nil {
		s.logger.Info("Warning: the broker drops a message of the queue silently when the message was given back more often than the delivery limit says, "+
			"because the queue has no dead-letter target; run the command, or where a policy applies to the queue already, add the definition to that policy",
			watermill.LogFields{"limit": d.limit, "unless": d.unless, "missing": d.missing, "command": d.command, "safe_for": d.endures})
	}
}
