package audit

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/millpond-go/millpond/internal/management"
)

// managementTimeout bounds one question to the management API.
const managementTimeout = 10 * time.Second

// Manager asks the management API about one vhost. After the first failure it asks no more, and
// Err says why. It is made for one call, so that the policies that it has seen are as old as that
// call at most. A nil Manager stands for no management API and answers nothing.
type Manager struct {
	api   *management.API
	vhost string
	ctx   context.Context
	seen  *Policies
	// Err says why nothing more was asked, PolicyErr why the policies cannot be seen.
	Err, PolicyErr error
	// Unseen says what else could not be seen, where the rest was.
	Unseen []error
}

// NewManager returns a Manager that asks url, or nil where url is empty. It asks no API of another
// cluster than the one named, which AMQP leads to: its policies and queues are others. An empty
// cluster is any.
func NewManager(ctx context.Context, url, vhost, cluster string, config *tls.Config) *Manager {
	if url == "" {
		return nil
	}
	m := &Manager{ctx: ctx, vhost: vhost}
	if m.api, m.Err = management.New(url, config); m.Err == nil {
		m.Err = m.ask(func(ctx context.Context) error { return m.api.IsOf(ctx, cluster) })
	}
	return m
}

func (m *Manager) ask(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(m.ctx, managementTimeout)
	defer cancel()
	if err := f(ctx); err != nil {
		return fmt.Errorf("management API: %w", err)
	}
	return nil
}

// answers reports whether f has found its object.
func (m *Manager) answers(f func(ctx context.Context) error) bool {
	if m == nil || m.Err != nil {
		return false
	}
	err := m.ask(f)
	if err != nil && !errors.Is(err, management.ErrNotFound) {
		m.Err = err
	}
	return err == nil
}

// permits is answers for a question that the user may be refused though all else is answered: an
// error goes to Unseen, with the text before it.
func (m *Manager) permits(text string, f func(ctx context.Context) error) bool {
	if m == nil || m.Err != nil {
		return false
	}
	err := m.ask(f)
	if err != nil {
		m.Unseen = append(m.Unseen, fmt.Errorf("%s: %w", text, err))
	}
	return err == nil
}

// Queue returns a queue; ok is false where it does not exist or cannot be seen.
func (m *Manager) Queue(name string) (q management.Queue, ok bool) {
	ok = m.answers(func(ctx context.Context) (err error) {
		q, err = m.api.Queue(ctx, m.vhost, name)
		return err
	})
	return q, ok
}

// Bindings returns the bindings from an exchange.
func (m *Manager) Bindings(exchange string) (list []management.Bound, ok bool) {
	ok = m.answers(func(ctx context.Context) (err error) {
		list, err = m.api.Bindings(ctx, m.vhost, exchange)
		return err
	})
	return list, ok
}

// FeatureFlags returns the states of the feature flags by their names.
func (m *Manager) FeatureFlags() (states map[string]string, ok bool) {
	const text = "feature flags were not looked at: " +
		"the user needs the tag administrator for them before RabbitMQ 4.0"
	ok = m.permits(text, func(ctx context.Context) (err error) {
		states, err = m.api.FeatureFlags(ctx)
		return err
	})
	return states, ok
}

// Nodes returns the nodes of the cluster.
func (m *Manager) Nodes() (list []management.Node, ok bool) {
	ok = m.permits("alarms and replicas were not looked at", func(ctx context.Context) (err error) {
		list, err = m.api.Nodes(ctx)
		return err
	})
	return list, ok
}

// Policies returns all policies of the vhost, nil where they cannot be seen; see WhyNoPolicies.
func (m *Manager) Policies() *Policies {
	switch {
	case m == nil || m.Err != nil || m.PolicyErr != nil:
		return nil
	case m.seen != nil:
		return m.seen
	}
	err := m.ask(func(ctx context.Context) (err error) {
		m.seen, err = ReadPolicies(ctx, m.api, m.vhost)
		if errors.Is(err, management.ErrNotFound) { // as 4.3 answers (F39)
			const way = "the user needs permissions in vhost %q, of which ^$ is enough"
			err = fmt.Errorf("%w: "+way, err, m.vhost)
		}
		if err != nil {
			err = fmt.Errorf("policies: %w", err)
		}
		return err
	})
	m.PolicyErr = err
	return m.seen
}

// ReadPolicies reads all policies of a vhost; nil with an error.
func ReadPolicies(ctx context.Context, api *management.API, vhost string) (*Policies, error) {
	users, err := api.Policies(ctx, vhost)
	if err != nil {
		return nil, err
	}
	operators, err := api.OperatorPolicies(ctx, vhost)
	if err != nil {
		return nil, err
	}
	return &Policies{User: users, Operator: operators}, nil
}

// WhyNoPolicies says why Policies returns nil on a Manager that is not nil.
func (m *Manager) WhyNoPolicies() error {
	if m.Err != nil {
		return m.Err
	}
	return m.PolicyErr
}
