package operate_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// problems are the problems of one name.
func problems(h operate.Rehearsal, name string) []operate.Problem {
	var list []operate.Problem
	for _, f := range h.Findings {
		if f.Name == name {
			list = append(list, f.Problem)
		}
	}
	return list
}

func (b *box) rehearse(options operate.RampOptions) operate.Rehearsal {
	b.t.Helper()
	h, err := b.Rehearse(b.t.Context(), b.plan, options)
	require.NoError(b.t, err)
	for _, f := range h.Findings {
		b.t.Log(f)
	}
	return h
}

// A rehearsal counts the letters by what would become of them, looks at the target, and moves
// nothing.
func TestRehearsal(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		b.delayBy(200 * time.Millisecond)
		b.die(10, func(i int, notes *header.RetryState, m *amqp.Publishing) {
			switch i {
			case 0:
				m.Expiration = "3600000"
			case 1:
				m.Headers[header.Replays] = "3"
			case 2:
				notes.Reason, notes.Deadline = header.ReasonDeadline, died(0)
			case 3:
				m.Body = make([]byte, 5000)
			case 4:
				notes.Error = "no such customer"
			}
		})
		options := operate.RampOptions{MoveOptions: operate.MoveOptions{
			MaxReplays: 3, Filter: operate.Filter{Error: "refused"},
			Edit: func(_ operate.Letter, msg *amqp.Publishing) error {
				if len(msg.Body) == 5000 {
					return errors.New("cannot be changed so")
				}
				msg.Body = nil
				return nil
			},
		}}
		h := b.rehearse(options)
		require.Equal(t, operate.Progress{
			Total: 10, Seen: 10, Chosen: 7, Refused: 1, Spent: 1,
		}, h.Progress)
		require.Equal(t, b.queue, h.Target)
		require.Less(t, h.Largest, 5000, "of the letters that would move")
		require.Equal(t, 2, h.Expiring)
		require.Zero(t, h.Ready.N+h.Consumers.N)
		require.True(t, h.Consumers.Known())
		require.Contains(t, problems(h, b.queue), operate.Unconsumed)
		b.serve(never, 200*time.Millisecond)
		h = b.rehearse(options)
		require.Equal(t, 1, h.Consumers.N)
		require.NotContains(t, problems(h, b.queue), operate.Unconsumed)
		require.NotContains(t, problems(h, "amq.default"), operate.Forbidden)
		require.Len(t, b.letters(operate.Filter{}), 10)

		missing := b.queue + ".missing"
		options.To = missing
		h = b.rehearse(options)
		require.False(t, h.Consumers.Known())
		require.False(t, h.Ready.Known())
		require.Contains(t, problems(h, missing), operate.Missing)

		// A queue that keeps five messages and drops old ones, and one of the rest.
		full := testbroker.Queue(t)
		rig.DeclareQueue(t, b.url, full, amqp.Table{
			"x-queue-type": string(b.strategy.Type), "x-max-length": int32(5),
		})
		options.To = full
		h = b.rehearse(options)
		require.GreaterOrEqual(t, len(problems(h, full)), 3) // it drops; no consumer; no room
		require.Contains(t, room(h, full), "has 0 messages and room for 5, and 7 letters")
		options.Limit = 5
		require.Empty(t, room(b.rehearse(options), full))
	})
}

// room is the finding about the room of a queue.
func room(h operate.Rehearsal, queue string) string {
	for _, f := range h.Findings {
		if f.Name == queue && f.Problem == operate.Dropping && strings.HasPrefix(f.Text, "has ") {
			return f.Text
		}
	}
	return ""
}

// Given the management API, a rehearsal names a policy that bounds the target, and a ramp counts
// the messages that a consumer holds. A user who may read the dead letters and not publish is told
// so, and no queue gets a message.
func TestRehearsalOfPoliciesAndRights(t *testing.T) {
	t.Parallel()
	n, api := testbroker.Managed(t, "")
	n.Grant(t, testbroker.Grant{
		VHost: "/", User: "reader", Configure: ".*", Write: "^orders", Read: ".*",
	})
	b := newBoxAt(t, n.URL(), "orders", topology.PerQueue{Type: topology.Classic},
		operate.WithManagement(api))
	b.die(8)
	testbroker.SetPolicy(t, api, "policies", "/", "short", "^orders$", map[string]any{
		"max-length": 5, "message-ttl": 1000,
	})
	h := b.rehearse(operate.RampOptions{})
	require.Contains(t, room(h, "orders"), "room for 5, and 8 letters")
	require.Contains(t, problems(h, "orders"), operate.Overruled)
	require.Empty(t, problems(h, "amq.default"))
	testbroker.Remove(t, api, "policies", "/", "short")

	o := rig.OpenOperator(t, n.URLOf("reader"), operate.WithoutPolicyCheck())
	h, err := o.Rehearse(t.Context(), b.plan, operate.RampOptions{})
	require.NoError(t, err)
	require.Contains(t, problems(h, "amq.default"), operate.Forbidden, h.Findings)
	_, err = o.Ramp(t.Context(), b.plan, operate.RampOptions{})
	require.Error(t, err)
	require.Len(t, b.letters(operate.Filter{}), 8)

	b.serve(never, time.Second)
	rig.WaitFor(t, "the management API to have counted", func() bool {
		report, err := b.Inspect(t.Context(), b.plan)
		return err == nil && report.Queues[0].Total.Known()
	})
	r, err := b.Ramp(t.Context(), b.plan, quick(operate.RampOptions{}))
	require.NoError(t, err)
	requireSum(t, r)
	require.True(t, r.AtHandler.Known())
	require.Equal(t, operate.SourceManagement, r.AtHandler.Source)
}
