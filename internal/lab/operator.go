package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// This file is an instance that decides about the keys that a dead letter blocks, as a person does
// with the tool.

const (
	// behindLetter is how long a key stays blocked while no message waits behind its letter.
	behindLetter = 4 * time.Second
	// orphaned is the age from which on a mark without a letter is released. A process that ends
	// between the two leaves such a mark, and the message comes again.
	orphaned = 10 * time.Second
)

// decide decides until ctx is done.
func (in instance) decide(ctx context.Context) error {
	all, err := newLines(in.settings)
	if err != nil {
		return err
	}
	var o *operate.Operator
	for rest(ctx, 300*time.Millisecond) {
		var err error
		if o == nil { // the broker may be down
			o, err = operate.Open(ctx, in.URLs[0], operate.WithoutPolicyCheck())
		}
		if err == nil {
			err = in.look(ctx, o, all[0].plan)
		}
		if err != nil && in.Verbose {
			fmt.Fprintf(os.Stderr, "%s operator: %v\n", time.Now().Format("15:04:05.000"), err)
		}
	}
	return nil // the end of the process closes the connection
}

// look decides about all keys that are blocked now. A decision that fails is repeated at the
// next look.
func (in instance) look(ctx context.Context, o *operate.Operator, plan topology.Plan) error {
	state, err := o.Order(ctx, plan)
	if err != nil {
		return err
	}
	var all []error
	for _, k := range state.BlockedKeys() {
		age := time.Since(k.Blocked)
		if k.Waiting == 0 && age < behindLetter {
			continue
		}
		m, _, err := parseID(k.MessageID)
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		d := in.Fates.decision(m)
		err = in.order(ctx, o, plan, k, m, d)
		if d == replayed && errors.Is(err, operate.ErrUnsafe) && age > orphaned {
			err = in.order(ctx, o, plan, k, m, released)
		}
		if err != nil {
			all = append(all, fmt.Errorf("%s of %s: %w", d, m, err))
		}
	}
	return errors.Join(all...)
}

// order logs a decision before it is done.
func (in instance) order(
	ctx context.Context, o *operate.Operator, plan topology.Plan, k operate.OrderKey, m id, d outcome,
) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	in.append(event{Kind: decided, Who: in.Name, id: m, Outcome: d})
	if d == released {
		return o.ReleaseKey(ctx, plan, k.Key, k.Mark)
	}
	_, err := o.ReplayKey(ctx, plan, k.Key, operate.MoveOptions{Edit: in.mend})
	return err
}

// mend edits a letter, and takes all headers of the library away. Some letters are replayed once as
// they are, and fail again.
func (in instance) mend(l operate.Letter, msg *amqp.Publishing) error {
	m, _, err := parseID(string(msg.Body))
	if err != nil || l.Replays == 0 && in.Fates.failsTwice(m) {
		return err
	}
	msg.Headers, msg.Body = m.publishing().Headers, []byte(m.String()+mendedMark)
	return nil
}
