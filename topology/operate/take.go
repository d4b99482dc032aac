package operate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/scan"
	"github.com/millpond-go/millpond/topology"
)

// giveBackLimit bounds the goodbye to the broker, which waits 20 s for messages that
// are not back.
const giveBackLimit = time.Minute

// holdLimit is how long messages are held, well under the broker's consumer
// timeout of 30 min (F16).
var holdLimit = 15 * time.Minute

// taking is a scan with its connection.
type taking struct {
	*scan.Scan
	client *topology.Client
	plan   topology.Plan
	queue  string
	frame  int // the largest the broker takes
	// before, if it is set, is called before anything is given back.
	before func() error
	end    func()
	began  time.Time
}

// take begins to take up to limit messages of a queue, all that are there if it
// is less than 0, where that is proven to delete none. giveBack must be called.
func take(ctx context.Context, client *topology.Client, plan topology.Plan, queue string, limit int) (*taking, error) {
	if err := client.CheckPeek(ctx, plan, queue); err != nil {
		return nil, err
	}
	conn, end, err := client.Connect(ctx)
	if err != nil {
		return nil, err
	}
	ch, err := conn.Channel()
	if err != nil {
		end()
		return nil, fmt.Errorf("open channel: %w", err)
	}
	t := &taking{
		Scan: scan.New(ctx, ch, queue, limit), client: client, plan: plan, queue: queue,
		frame: conn.Config.FrameSize, end: end, began: time.Now(),
	}
	if t.frame <= 0 {
		t.frame = math.MaxInt
	}
	return t, nil
}

func (t *taking) next() (amqp.Delivery, bool, error) {
	d, ok, err := t.Next()
	return d, ok, t.explain(err)
}

// old reports whether messages have been held for as long as is safe.
func (t *taking) old() bool { return time.Since(t.began) > holdLimit }

// giveBack puts back what was taken and not acked, and ends the connection.
func (t *taking) giveBack() (err error) {
	if t.before != nil {
		err = t.before()
	}
	return errors.Join(err, t.handBack())
}

func (t *taking) handBack() error {
	done := make(chan error, 1)
	go func() { done <- t.GiveBack() }()
	defer t.end()
	select {
	case err := <-done:
		if missing := (*scan.MissingError)(nil); errors.As(err, &missing) {
			return t.client.CheckGivenBack(context.Background(), t.plan, t.queue, missing.Messages)
		}
		return t.explain(err)
	case <-time.After(giveBackLimit):
		return errors.New("the broker does not answer; it gives back what was taken when it notices that the connection is gone")
	}
}

// explain says what an error means, where that is known.
func (t *taking) explain(err error) error {
	var answer *amqp.Error
	if errors.As(err, &answer) && answer.Code == amqp.FrameError || errors.Is(err, amqp.ErrClosed) || errors.Is(err, scan.ErrCancelled) {
		return fmt.Errorf("%w: message %d of queue %q or one soon behind it does not fit into a frame (broker facts F16 and F25), or connection or queue were lost: %w", ErrUnreadable, t.Seen()+1, t.queue, err)
	}
	return err
}
