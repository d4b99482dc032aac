package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/millpond-go/millpond/internal/fleet"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/middleware/header"
)

var (
	// ErrNoBrake: the broker knows no brake of this name.
	ErrNoBrake = fleet.ErrNoBrake
	// ErrBrakeOpen: the brake was not stopped, as far as the broker and the processes show.
	ErrBrakeOpen = fleet.ErrOpen
)

const (
	// MaxBrakeStop is the longest time that StopBrake stops a brake.
	MaxBrakeStop = 24 * time.Hour
	// maxCause is the most bytes of a cause, and of the name of an operator.
	maxCause = fleet.LongestText
	// brakesAtOnce is how many brakes are asked at the same time. Each needs two channels.
	brakesAtOnce = 32
	// countedLate is how late the management API counts the messages of a quorum queue, on a busy
	// machine. Most counts are five seconds old.
	countedLate = 15 * time.Second
)

// Brakes returns the brakes of the vhost by name, open ones too: budgets of the services with a
// Brake. It needs the management API, which alone shows the names. Each state is as Brake returns
// it.
func (o *Operator) Brakes(ctx context.Context) ([]header.BrakeState, error) {
	api, err := o.brakeAPI(ctx)
	if err == nil && api == nil {
		err = errors.New("only the management API shows the names of brakes: " +
			"name it (WithManagement, --management), or name the brake")
	}
	if err != nil {
		return nil, fmt.Errorf("brakes: %w", err)
	}
	list, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	names, err := api.Names(list, "exchanges", o.vhost, fleet.Prefix)
	if err != nil {
		return nil, fmt.Errorf("brakes: management API: %w", err)
	}
	for i := range names {
		names[i] = strings.TrimPrefix(names[i], fleet.Prefix)
	}
	states, err := o.brakeStates(ctx, api, names)
	if err != nil {
		return nil, fmt.Errorf("brakes: %w", err)
	}
	return states, nil
}

// brakeStates asks the brakes with these names.
func (o *Operator) brakeStates(
	ctx context.Context, api *management.API, names []string,
) ([]header.BrakeState, error) {
	names = slices.DeleteFunc(names, func(name string) bool { return fleet.CheckName(name) != nil })
	if len(names) == 0 {
		return nil, nil
	}
	states, problems := make([]header.BrakeState, len(names)), make([]error, len(names))
	err := o.call(ctx, func(ctx context.Context, conn *link.Conn) error {
		var all sync.WaitGroup
		place := make(chan struct{}, brakesAtOnce)
		for i, name := range names {
			place <- struct{}{}
			all.Go(func() {
				states[i], problems[i] = o.brake(ctx, conn, api, name)
				<-place
			})
		}
		all.Wait()
		for i, err := range problems {
			if errors.Is(err, ErrNoBrake) { // an exchange without its queue
				problems[i] = nil
			}
		}
		return errors.Join(problems...)
	})
	return states, err
}

// brakeAPI returns nil where no management API is configured.
func (o *Operator) brakeAPI(ctx context.Context) (*management.API, error) {
	m := o.manager(ctx)
	if m == nil {
		return nil, nil
	}
	return m.API, m.Err
}

// Brake returns the state of one brake. The process that probes answers within a second. Where no
// process is up, the state on the broker waits for the processes, and is returned. A brake that was
// never declared is ErrNoBrake.
//
// A process that probes and hangs does not answer. Then the state is from another process, or
// Stopped and no more, after some seconds. Without the management API it is Unknown if another
// process is stopped. Else the brake seems to be open until the broker drops the connection of that
// process.
func (o *Operator) Brake(ctx context.Context, name string) (state header.BrakeState, err error) {
	if err := fleet.CheckName(name); err != nil {
		return state, fmt.Errorf("%w: %w", ErrInvalidOptions, err)
	}
	api, err := o.brakeAPI(ctx)
	if err != nil {
		return header.BrakeState{Name: name}, err
	}
	err = o.call(ctx, func(ctx context.Context, conn *link.Conn) (err error) {
		state, err = o.brake(ctx, conn, api, name)
		return err
	})
	if err != nil {
		return header.BrakeState{Name: name}, err
	}
	return state, nil
}

// brake asks the process that probes. Where none answers it looks whether a process has the token.
func (o *Operator) brake(
	ctx context.Context, conn *link.Conn, api *management.API, name string,
) (header.BrakeState, error) {
	for limit := time.Now().Add(countedLate); ; {
		state, err := fleet.Ask(ctx, conn, name)
		if err != nil || state.Stopped && !state.Unknown || api == nil {
			return state, err
		}
		q, err := api.Queue(ctx, o.vhost, fleet.Prefix+name)
		if err != nil || q.Unacked == nil || *q.Unacked == 0 {
			return state, nil //nolint:nilerr // the API only adds to the answers of AMQP
		}
		// A process has the token, or had it some seconds ago. AMQP does not show it.
		if time.Now().After(limit) {
			state.Stopped, state.Unknown = true, false
			return state, nil
		}
	}
}

// StopBrake stops the processes that share a brake within a second: a planned downtime. They
// finish the messages in progress, and the rest stays in the queues. After limit, 24 hours at most,
// the processes probe by themselves; StartBrake starts them before. Processes that start meanwhile
// stop, too. by names the operator, and cause says why; both are shown to all who look.
//
// shared reports whether a process shares the brake now. Otherwise none is up, or the name is
// wrong; the brake is declared and stopped in each case. It is an error if a process ignores the
// user of this Operator, and none has stopped; see topology.WithControlUsers.
func (o *Operator) StopBrake(
	ctx context.Context, name, by, cause string, limit time.Duration,
) (shared bool, err error) {
	if err := checkStop(name, by, cause, limit); err != nil {
		return false, fmt.Errorf("stop brake: %w: %w", ErrInvalidOptions, err)
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	state := header.BrakeState{Name: name, Since: now, By: by, Cause: cause, Until: now.Add(limit)}
	err = o.call(ctx, func(ctx context.Context, conn *link.Conn) (err error) {
		shared, err = fleet.StopByHand(ctx, conn, state)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("stop brake %q: %w", name, err)
	}
	return shared, nil
}

func checkStop(name, by, cause string, limit time.Duration) error {
	problems := []error{fleet.CheckName(name)}
	if limit < time.Second || limit > MaxBrakeStop {
		const text = "the limit is %v: it must be 1s to %v"
		problems = append(problems, fmt.Errorf(text, limit, MaxBrakeStop))
	}
	for what, text := range map[string]string{"the operator": by, "the cause": cause} {
		if len(text) > maxCause || !utf8.ValidString(text) {
			const problem = "%s has %d bytes: it must be UTF-8, of %d bytes at most"
			problems = append(problems, fmt.Errorf(problem, what, len(text), maxCause))
		}
	}
	return errors.Join(problems...)
}

// StartBrake starts the processes that share a brake, whether an operator has stopped it or the
// processes have. It returns when they start, and after some seconds with an error that says how
// else it can be done. by names the operator. ErrBrakeOpen says that nothing showed a stop; the
// processes are told to start all the same. A brake that was never declared is ErrNoBrake.
//
// Where the downstream is still out, the processes stop again after the failures that a new outage
// takes.
func (o *Operator) StartBrake(ctx context.Context, name, by string) error {
	if err := checkStop(name, by, "", MaxBrakeStop); err != nil {
		return fmt.Errorf("start brake: %w: %w", ErrInvalidOptions, err)
	}
	err := o.call(ctx, func(ctx context.Context, conn *link.Conn) error {
		return fleet.StartByHand(ctx, conn, name, by)
	})
	if err != nil {
		return fmt.Errorf("start brake: %w", err)
	}
	return nil
}
