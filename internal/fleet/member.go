package fleet

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/brake"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/middleware/header"
)

const (
	// answerLimit is how long a new member waits for the state of the brake, after its question has
	// come back to itself.
	answerLimit = 300 * time.Millisecond
	// beat is the longest time between two Stopped of the process that probes.
	beat = 5 * time.Second
	// renewal is the age at which a token is replaced, so that the broker's consumer timeout, of
	// a minute at least (F16), never ends.
	renewal = 20 * time.Second
	// silence is how long a stopped member may hear of no process that probes. The broker notices
	// within the time of its heartbeats, 30 s, that a process has died.
	silence = 90 * time.Second
	// proofLimit is the age of the last proof of a token from which a stopped member asks for another.
	proofLimit = 10 * time.Second
	// confirmLimit bounds the confirm of a token.
	confirmLimit = 5 * time.Second
	// rejoinLimit is how long a stopped member waits for the broker before it starts.
	rejoinLimit = 60 * time.Second
	// defaultHeartbeat is amqp091-go's.
	defaultHeartbeat = 10 * time.Second
	// mostTokens is how many tokens the broker may send ahead. They are merged into one, which comes
	// last: so it is more than the processes that may stop the brake at the same moment.
	mostTokens = 2000
)

var (
	errNoToken     = errors.New("no instance has the token of the brake")
	errUnconfirmed = errors.New("the broker has not confirmed the token of the brake")
	errNoEcho      = errors.New("the news of this instance do not come back from the broker")
	errNotListed   = errors.New("the user of this connection is none of WithControlUsers")
	errIgnored     = errors.New("its user is none of WithControlUsers")
)

// Config describes a Member. All fields need a value, except Provisioned and ControlUsers.
type Config struct {
	Brake       *brake.Brake
	Link        *link.Link
	Instance    string // its name, different from all others
	Logger      watermill.LoggerAdapter
	Provisioned bool // declare neither exchange nor token queue
	// ControlUsers are the users whose news and tokens are believed. Default: all.
	ControlUsers []string
	// Tell is told of each change of the state, and whether this instance probes.
	Tell func(state header.BrakeState, probing bool)
}

// Member is the part of a fleet that one process has, for one brake.
type Member struct {
	Config
	name  string
	ready chan struct{} // closed when the state is known, or cannot be
	once  sync.Once
	said  bool // the present trouble is logged

	mu     sync.Mutex
	queues []string      // that this process consumes, or has consumed
	more   chan struct{} // a queue has come

	// The goroutine of Run alone has these.
	rates  map[string]float64 // of the members that are known
	others float64            // the rates of members that have left
	lost   time.Time          // since then the broker cannot be reached
	proof  time.Time          // the last time that a process had a token
	doubt  time.Time          // the last time that a user was logged who is not believed
	// tripped says that this process has stopped the brake, and the broker has not confirmed it.
	tripped bool
	// orphaned says that the queue of the token was deleted, and that no process is known that has
	// had the token after this one.
	orphaned bool
}

// NewMember returns a Member that has not joined. The brake must have a name.
func NewMember(cfg Config) *Member {
	m := &Member{
		Config: cfg, name: cfg.Brake.State().Name, ready: make(chan struct{}),
		rates: map[string]float64{}, more: make(chan struct{}, 1),
	}
	m.Logger = m.Logger.With(watermill.LogFields{"brake": m.name})
	return m
}

// Ready is closed when the state of the brake is known for the first time, or cannot be known.
func (m *Member) Ready() <-chan struct{} { return m.ready }

// Serve shows operators that this process consumes the queue: the queue for its news is bound with
// that routing key, too, which a fanout exchange ignores.
func (m *Member) Serve(queue string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Contains(m.queues, queue) {
		return
	}
	m.queues = append(m.queues, queue)
	select {
	case m.more <- struct{}{}:
	default:
	}
}

// Run takes part until ctx is done. While the broker cannot be reached, it tries again.
func (m *Member) Run(ctx context.Context) {
	defer m.Brake.Forget(m.Instance)
	const first, most = 250 * time.Millisecond, 10 * time.Second
	for pause := first; ; pause = min(2*pause, most) {
		began := time.Now()
		err := m.session(ctx)
		if ctx.Err() != nil {
			return
		}
		m.trouble(err)
		if time.Since(began) > most {
			pause = first
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// trouble takes the end of a session. A lost connection may come back soon.
func (m *Member) trouble(err error) {
	if m.lost.IsZero() {
		m.lost = time.Now()
	}
	// The others do not know of a stop whose token is not confirmed.
	untold := m.tripped && errors.Is(err, errUnconfirmed)
	if isRefusal(err) || untold || time.Since(m.lost) > rejoinLimit {
		m.Brake.Leave()
	}
	m.once.Do(func() { close(m.ready) })
	if !m.said {
		m.said = true
		m.Logger.Error("The instances of the brake cannot reach each other through the broker: until "+
			"they can, the budget of this process works as without Brake", err, nil)
	}
}

// isRefusal reports whether the broker has refused a part of the brake.
func isRefusal(err error) bool {
	refused := new(amqp.Error)
	if !errors.As(err, &refused) {
		return errors.Is(err, ErrName) || errors.Is(err, errNotListed)
	}
	switch refused.Code {
	case amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed:
		return true
	}
	return false
}
