package month

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/millpond-go/millpond/internal/clock"
)

// settling is the time after the end of an event in which it may still have effects.
const settling = 2 * time.Second

// event is the event of a day.
type event struct {
	name string
	// copies is how many more copies of one message it may make, again how often a handler may be
	// called once more with the same attempt of one copy.
	copies, again int
	happen        func(context.Context, *run) error
}

// events follow one another from day to day. The last one needs a cluster.
var events = []event{
	// The connection is lost at its end, with outcomes that nothing tells. A delivery goes back when
	// its hold ends, and with each probe.
	{"nothing can be published for four hours", 1, 3, func(ctx context.Context, r *run) error {
		return during(ctx, 4*time.Hour, r.publishing.Blackhole)
	}},
	// A copy that was written when the disk became full is stored when it has room again. Its
	// outcome is open, and it is given up when the hold ends.
	{"the disk is full for an hour", 1, 3, fullDisk},
	// A wait queue that is silent for three confirm timeouts gets a scout.
	{"confirms take a minute", 1, 1, func(ctx context.Context, r *run) error {
		r.publishing.HoldConfirms(true)
		defer r.publishing.HoldConfirms(false)
		return sleep(ctx, 6*confirmTimeout) // as a minute is to ten seconds
	}},
	{"the clock jumps by three hours, and back by four", 0, 0, jumpingClock},
	{"connections are lost six times in half an hour", 6, 6, flap},
	{"the credentials expire", 1, 1, newPassword},
	{"the wait queues are full for an hour", 0, 8, fullQueues},
	// Acks do not arrive before the consumer timeout, and a message that expired a moment before may
	// come twice (F18).
	{"no majority for an hour", 2, 3, minority},
}

// eventOf returns the event of a day. Each second time the four hours have deployments inside.
func (r *run) eventOf(day int) event {
	if day%(2*len(events)) == len(events)+1 {
		return event{"the same four hours, with a deployment", 3, 6, deployInOutage}
	}
	return events[(day-1)%len(events)]
}

// deployInOutage replaces the replicas during the outage. A replica starts when its connections are
// open, so the new ones come after it.
func deployInOutage(ctx context.Context, r *run) error {
	deployed := make(chan error, 1)
	err := during(ctx, 4*time.Hour, func(on bool) {
		r.publishing.Blackhole(on)
		if on {
			go func() {
				_ = sleep(ctx, the(2*time.Hour))
				deployed <- r.shop.deploy(ctx)
			}()
		}
	})
	return errors.Join(err, <-deployed)
}

// during turns something on for d.
func during(ctx context.Context, d time.Duration, turn func(on bool)) error {
	turn(true)
	defer turn(false)
	return sleep(ctx, the(d))
}

func fullDisk(ctx context.Context, r *run) error {
	if _, err := r.cluster.Node(0).RunCtl(ctx, "set_disk_free_limit", "100000GB"); err != nil {
		return err
	}
	if err := sleep(ctx, the(time.Hour)); err != nil {
		return err
	}
	_, err := r.cluster.Node(0).RunCtl(ctx, "set_disk_free_limit", "10MB")
	return err
}

// fullQueues lets all copies be refused that would wait.
func fullQueues(ctx context.Context, r *run) error {
	_, err := r.cluster.Node(0).RunCtl(ctx, "set_policy", "full", "^orders[.]wait", `{"max-length":0}`)
	if err != nil {
		return err
	}
	if err := sleep(ctx, the(time.Hour)); err != nil {
		return err
	}
	_, err = r.cluster.Node(0).RunCtl(ctx, "clear_policy", "full")
	return err
}

func jumpingClock(ctx context.Context, _ *run) error {
	for _, d := range []time.Duration{3 * time.Hour, -4 * time.Hour} {
		clock.Jump(the(d))
		if err := sleep(ctx, the(10*time.Minute)); err != nil {
			return err
		}
	}
	return nil
}

func flap(ctx context.Context, r *run) error {
	for range 6 {
		r.consume.Cut()
		r.publishing.Cut()
		if err := sleep(ctx, the(5*time.Minute)); err != nil {
			return err
		}
	}
	return nil
}

// newPassword changes the password and ends the connections, so that the old one is of no use.
func newPassword(ctx context.Context, r *run) error {
	if err := r.shop.changePassword(ctx); err != nil {
		return err
	}
	r.consume.Cut()
	r.publishing.Cut()
	return nil
}

// minority halts two nodes of three.
func minority(ctx context.Context, r *run) error {
	for i := 1; i < r.Nodes; i++ {
		if err := r.cluster.Freeze(i); err != nil {
			return err
		}
	}
	err := sleep(ctx, the(time.Hour))
	for i := 1; i < r.Nodes; i++ {
		if thawed := r.cluster.Thaw(i); thawed != nil {
			return thawed
		}
	}
	return err
}

// nothingIn reports whether all queues of a list are empty.
func nothingIn(list string) bool {
	fields := strings.Fields(list)
	for i := 1; i < len(fields); i += 2 {
		if fields[i] != "0" {
			return false
		}
	}
	return true
}
