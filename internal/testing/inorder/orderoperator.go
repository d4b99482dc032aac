package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// decisions decides about the keys that a dead letter blocks, as a person does with the tool. It is
// a process of the same program as the instances, so that planted mistakes of package operate are
// in it, too.
type decisions struct {
	URL     string
	Delays  []time.Duration
	Log     string
	Fates   fates
	Verbose bool
}

const (
	released outcome = "release" // the key goes on without its letter
	replayed outcome = "replay"  // the letter is handled in its place
)

const (
	// lookPause is between two looks at the blocked keys.
	lookPause = 300 * time.Millisecond
	// behindLetter is how long a key stays blocked while no message waits behind its letter.
	behindLetter = 4 * time.Second
	// orphaned is the age from which on a mark without a letter is released. A process that ends
	// between the two leaves such a mark, and the message comes again.
	orphaned = 10 * time.Second
	// decisionLimit bounds one decision.
	decisionLimit = 30 * time.Second
)

// operatorEnv makes a process of this program an operator. Its value is the decisions.
const operatorEnv = "MILLPOND_ORDER_OPERATOR"

// start starts the process. stop ends it and waits for its end.
func (p decisions) start(program string, out io.Writer) (stop func(), err error) {
	config, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), operatorEnv+"="+string(config))
	cmd.Stdout, cmd.Stderr = out, out
	stdin, err := cmd.StdinPipe() // its end tells the process that this one has ended
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(decisionLimit, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		_ = cmd.Wait()
		_ = stdin.Close()
	}), nil
}

// serve decides until SIGTERM, or until the parent process has ended.
func (p decisions) serve() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	log, err := openLog(p.Log)
	if err != nil {
		return err
	}
	defer log.close()
	plan, err := topology.PlanFor(strategy(true, true), queue, backoff.List(p.Delays))
	if err != nil {
		return err
	}
	var o *operate.Operator
	for rest(ctx, lookPause) {
		var err error
		if o == nil { // the broker may be down
			o, err = operate.Open(ctx, p.URL, operate.WithoutPolicyCheck())
		}
		if err == nil {
			err = p.look(ctx, o, plan, log)
		}
		if err != nil && p.Verbose {
			fmt.Fprintf(os.Stderr, "%s operator: %v\n", time.Now().Format("15:04:05.000"), err)
		}
	}
	if o == nil {
		return nil
	}
	return o.Close()
}

// look decides about all keys that are blocked now. A decision that fails is repeated at the
// next look.
func (p decisions) look(
	ctx context.Context, o *operate.Operator, plan topology.Plan, log *eventLog,
) error {
	state, err := o.Order(ctx, plan)
	if err != nil {
		return err
	}
	var all []error
	for _, k := range state.BlockedKeys() {
		if ctx.Err() != nil {
			break
		}
		age := time.Since(k.Blocked)
		if k.Waiting == 0 && age < behindLetter {
			continue
		}
		m, err := parseMessageID(k.MessageID)
		if err != nil {
			return err
		}
		d := p.Fates.decision(m)
		err = p.decide(ctx, o, plan, log, k, m, d)
		if d == replayed && errors.Is(err, operate.ErrUnsafe) && age > orphaned {
			err = p.decide(ctx, o, plan, log, k, m, released)
		}
		if err != nil {
			all = append(all, fmt.Errorf("%s of %s: %w", d, m, err))
		}
	}
	return errors.Join(all...)
}

// decide logs a decision before it is done.
func (p decisions) decide(
	ctx context.Context, o *operate.Operator, plan topology.Plan, log *eventLog, k operate.OrderKey,
	m id, d outcome,
) error {
	ctx, cancel := context.WithTimeout(ctx, decisionLimit)
	defer cancel()
	err := log.append(event{kind: decided, at: time.Now(), instance: "op", msg: m, outcome: d})
	switch {
	case err != nil:
		return err
	case d == released:
		return o.ReleaseKey(ctx, plan, k.Key, k.Mark)
	}
	_, err = o.ReplayKey(ctx, plan, k.Key, operate.MoveOptions{Edit: p.edit})
	return err
}

// edit mends a letter, and takes all headers of the library away. Some letters are replayed once as
// they are, and fail again.
func (p decisions) edit(l operate.Letter, msg *amqp.Publishing) error {
	m, published, err := parseBody(msg.Body)
	if err != nil || l.Replays == 0 && p.Fates.failsTwice(m) {
		return err
	}
	mended := m.publishing(published)
	msg.Headers, msg.Body = mended.Headers, []byte(string(mended.Body)+mendedMark)
	return nil
}
