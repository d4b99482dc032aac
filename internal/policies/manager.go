package policies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/management"
)

// managementTimeout bounds one question to the management API.
const managementTimeout = 10 * time.Second

// Manager asks the management API about one vhost. After the first failure it asks no more, and
// Err says why. It is made for one call, so that the policies that it has seen are as old as that
// call at most. A nil Manager stands for no management API and answers nothing.
type Manager struct {
	API   *management.API
	vhost string
	ctx   context.Context
	seen  *Set
	bound map[string][]management.Bound // by exchange
	// Err says why nothing more was asked, PolicyErr why the policies cannot be seen.
	Err, PolicyErr error
	// Unseen says what else could not be seen, where the rest was.
	Unseen []error
}

// NewManager returns a Manager that asks url about the vhost of a connection, or nil where url is
// empty. It asks no API of another cluster than the connection's, whose policies and queues are
// others.
func NewManager(ctx context.Context, url string, of link.Config) *Manager {
	if url == "" {
		return nil
	}
	m := &Manager{ctx: ctx, bound: map[string][]management.Bound{}}
	m.vhost, _ = of.Vhost() // parsed before
	if m.API, m.Err = management.New(url, of.TLSConfig()); m.Err == nil {
		m.Err = m.ask(func(ctx context.Context) error { return m.API.IsOf(ctx, of.Cluster.Name()) })
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

// answer asks for one object. Where refused is not empty, the user may be refused it though all
// else is answered: then an error goes to Unseen, with that text before it.
func answer[T any](
	m *Manager, refused string, f func(ctx context.Context) (T, error),
) (found T, ok bool) {
	if m == nil || m.Err != nil {
		return found, false
	}
	err := m.ask(func(ctx context.Context) (err error) {
		found, err = f(ctx)
		return err
	})
	switch {
	case err == nil:
	case refused != "":
		m.Unseen = append(m.Unseen, fmt.Errorf("%s: %w", refused, err))
	case !errors.Is(err, management.ErrNotFound):
		m.Err = err
	}
	return found, err == nil
}

// Queue returns a queue; ok is false where it does not exist or cannot be seen.
func (m *Manager) Queue(name string) (q management.Queue, ok bool) {
	return answer(m, "", func(ctx context.Context) (management.Queue, error) {
		return m.API.Queue(ctx, m.vhost, name)
	})
}

// Bindings returns the bindings from an exchange, which it asks for once.
func (m *Manager) Bindings(exchange string) (list []management.Bound, ok bool) {
	if m == nil {
		return nil, false
	}
	if list, ok = m.bound[exchange]; ok {
		return list, true
	}
	list, ok = answer(m, "", func(ctx context.Context) ([]management.Bound, error) {
		return m.API.Bindings(ctx, m.vhost, exchange)
	})
	if ok {
		m.bound[exchange] = list
	}
	return list, ok
}

// FeatureFlags returns the states of the feature flags by their names.
func (m *Manager) FeatureFlags() (states map[string]string, ok bool) {
	return answer(m, "feature flags were not looked at: the user needs the tag administrator for "+
		"them before RabbitMQ 4.0", func(ctx context.Context) (map[string]string, error) {
		return m.API.FeatureFlags(ctx)
	})
}

// Nodes returns the nodes of the cluster.
func (m *Manager) Nodes() (list []management.Node, ok bool) {
	return answer(m, "alarms and replicas were not looked at",
		func(ctx context.Context) ([]management.Node, error) { return m.API.Nodes(ctx) })
}

// Policies returns all policies of the vhost, nil where they cannot be seen.
func (m *Manager) Policies() *Set {
	switch {
	case m == nil || m.Err != nil || m.PolicyErr != nil:
		return nil
	case m.seen != nil:
		return m.seen
	}
	m.PolicyErr = m.ask(func(ctx context.Context) error {
		users, err := m.API.Policies(ctx, m.vhost)
		if err == nil {
			m.seen = &Set{User: users}
			m.seen.Operator, err = m.API.OperatorPolicies(ctx, m.vhost)
		}
		if errors.Is(err, management.ErrNotFound) { // as 4.3 answers (F39)
			const way = "the user needs permissions in vhost %q, of which ^$ is enough"
			err = fmt.Errorf("%w: "+way, err, m.vhost)
		}
		if err != nil {
			m.seen = nil
			err = fmt.Errorf("policies: %w", err)
		}
		return err
	})
	return m.seen
}

// Declared implements audit.Manager.
func (m *Manager) Declared(queue string, version audit.Version) *audit.Facts {
	info, ok := m.Queue(queue)
	if !ok {
		return nil
	}
	return &audit.Facts{
		Kind: info.Type, Arguments: amqp.Table(info.Arguments), Known: true,
		Transient: !info.Durable || info.AutoDelete || info.Exclusive, Version: version,
	}
}

// Rule implements audit.Manager.
func (m *Manager) Rule(f *audit.Facts, queue string) {
	if list := m.Policies(); list != nil {
		if applied := list.Of(queue, f.Kind); len(applied.Unreadable) == 0 {
			f.Policy, f.Operator = applied.Definition(), applied.Operator
			_, ruled := f.Policy[audit.LimitKey]
			f.LimitInDoubt = ruled && !applied.Surely(audit.LimitKey)
		}
	}
	if f.PolicyPending = m != nil && f.Policy == nil; f.PolicyPending {
		f.PolicyErr = cmp.Or(m.Err, m.PolicyErr)
	}
}

// Harm implements audit.Manager.
func (m *Manager) Harm(plan audit.Plan, f *audit.Facts) (harm []audit.Harm, seen bool) {
	list := m.Policies()
	if list == nil {
		return nil, false
	}
	findings, _ := list.Judge(plan, map[string]audit.Facts{plan.Queue: *f}, f.Version, m.vhost)
	for _, found := range findings {
		if found.Severity == Critical {
			harm = append(harm, audit.Harm{Text: found.String(), Group: found.Group})
		}
	}
	return harm, true
}
