package topology

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/internal/audit"
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
	version := audit.VersionOf(conn.Properties)
	f, err := audit.Learn(ctx, conn.Do, s.plan.Queue, s.subscriber.cfg.queueArgs, version, m)
	if err != nil {
		return err
	}
	s.facts.Store(f)
	if err := f.Refuse(fmt.Sprintf("queue %q:", s.plan.Queue)); err != nil {
		return err
	}
	vhost, _ := client.linkCfg.Vhost() // parsed before
	s.warn(f, f.Drops(s.plan.audited(), vhost, s.hold(f)))
	s.warnPolicies(m, f, vhost)
	return nil
}

// warnPolicies logs which policies may lose or misdirect messages of the plan, once and
// again only when that has changed: one line for each key of a policy and role of queues,
// because Levels has 32 wait queues.
func (s *subscription) warnPolicies(m *audit.Manager, f *audit.Facts, vhost string) {
	list := m.Policies()
	if list == nil {
		return
	}
	known := map[string]audit.Known{}
	if f.Kind != "" {
		known[s.plan.Queue] = audit.Known{Kind: f.Kind, Arguments: f.Arguments}
	}
	findings, _ := list.Judge(s.plan.audited(), known, f.Version, vhost)
	findings = slices.DeleteFunc(findings, func(f audit.Finding) bool { return f.Severity != audit.Critical })
	said := s.ruled
	if s.ruled = fmt.Sprint(findings); s.ruled == said {
		return
	}
	alike := map[string]int{}
	for _, finding := range findings {
		alike[finding.Group]++
	}
	for _, finding := range findings {
		if n := alike[finding.Group]; n > 0 {
			alike[finding.Group] = 0
			s.logger.Error("A policy of the broker may lose or misdirect messages: exempt the queues and exchanges of the plan from it, which millpond verify lists", nil,
				watermill.LogFields{"finding": finding.String(), "alike": n - 1})
		}
	}
}

// warn logs what is allowed but should be known of the queue, again only when it has
// changed.
func (s *subscription) warn(f *audit.Facts, d *audit.Drop) {
	hazards := f.Hazards()
	said := s.warned
	if s.warned = fmt.Sprint(f.Kind, hazards, d); s.warned == said {
		return
	}
	for _, h := range hazards {
		s.logger.Info("Warning: an argument of the queue takes messages out of it", watermill.LogFields{"argument": h.Argument, "consequence": h.Text})
	}
	switch f.Kind {
	case "":
		s.logger.Info("Warning: the type of the queue is not known, because the user may not read it or its name is too long for the broker's answer; "+
			"if it is a quorum queue, messages that wait in classic queues are lost in a restart of the broker, and a delivery limit may drop messages; "+
			"use WithManagement", nil)
	case audit.Classic:
		s.logger.Info("Warning: the queue is a classic one, which has no copy on another node and counts no deliveries, "+
			"so that a message that kills the process comes back for ever; "+
			"a new queue is better declared with Queue.Arguments x-queue-type quorum", nil)
	}
	if f.LosesInRestarts(s.plan.audited()) {
		s.logger.Info("Warning: messages that wait in a classic queue are lost if their wait ends while the broker restarts, "+
			"because their quorum queue is not there yet; use topology.Quorum", nil)
	}
	if d != nil {
		s.logger.Info("Warning: the broker drops a message of the queue silently when the message was given back more often than the delivery limit says, "+
			"because the queue has no dead-letter target; run the command, or where a policy applies to the queue already, add the definition to that policy",
			watermill.LogFields{"limit": d.Limit, "unless": d.Unless, "missing": d.Missing, "command": d.Command, "safe_for": d.Endures})
	}
}
