package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// strandings are the strategies under which messages can be stranded, and their flags.
var strandings = map[string]struct {
	strategy func(prefix string) topology.Strategy
	flags    []string
}{
	"shared": {
		func(p string) topology.Strategy { return topology.Shared{Prefix: p} },
		[]string{"--strategy", "shared"},
	},
	"via": {
		func(p string) topology.Strategy { return topology.PerQueue{Prefix: p, Via: []string{"events"}} },
		[]string{"--return-to", "events"},
	},
	"levels": {
		func(p string) topology.Strategy { return topology.Levels{Prefix: p} },
		[]string{"--strategy", "levels"},
	},
}

// waitForAll is long enough that no message returns to its queue before the queue is deleted.
const waitForAll = 10 * time.Second

// vanishing is a service whose handler fails every first attempt. Its queue is deleted.
type vanishing struct {
	*service
	strategy topology.Strategy
	stranded string
	failed   atomic.Int64
	done     *rig.Calls // of second attempts
}

func (s *vanishing) start() *rig.Service {
	s.t.Helper()
	return rig.Start(s.t, rig.Config{
		URL: s.url, Queue: s.queue, Strategy: s.strategy, Policy: backoff.List{waitForAll}, Keep: true,
		Configure: rig.QuorumQueue, Handle: func(msg *message.Message) error {
			if middleware.Attempt(msg.Context()) == 1 {
				s.failed.Add(1)
				return shop.ErrBroken
			}
			s.done.Handle(string(msg.Payload))
			return nil
		},
	})
}

// strayLines lists the messages of the shop.
func (s *vanishing) strayLines() (lines []operate.StrandedMessage) {
	s.t.Helper()
	o := s.tool("stranded", "list", s.queue, "--json")
	require.Zero(s.t, o.code, o.err)
	return decoded[operate.StrandedMessage](s.t, o.out)
}

// awaitStranded waits until n messages are stranded, and requires the cause of each.
func (s *vanishing) awaitStranded(n int, cause operate.Cause) {
	s.t.Helper()
	var lines []operate.StrandedMessage
	testbroker.WaitFor(s.t, "the messages to be stranded", patience, func() bool {
		lines = s.strayLines()
		return len(lines) == n
	})
	for _, line := range lines {
		require.Equal(s.t, cause, line.Cause, line.Why)
		require.Equal(s.t, "orders", line.Queue)
		require.Equal(s.t, 1, line.Attempts)
		require.Contains(s.t, line.WaitQueue, ".")
	}
}

// returns requires that all n stranded messages return, and that their attempts go on: each is
// handled at its second.
func (s *vanishing) returns(n, handled int) {
	s.t.Helper()
	o := s.tool("stranded", "return", s.queue)
	require.Equal(s.t, fmt.Sprintf("returned %d stranded messages of %d\n", n, n), o.out, o.err)
	testbroker.WaitFor(s.t, fmt.Sprintf("%d orders to be handled", handled), patience,
		func() bool { return s.done.Count() == handled })
	require.EqualValues(s.t, handled, s.failed.Load(), "first attempts")
	require.Empty(s.t, s.strayLines())
}

// A queue is deleted while messages wait for it, and another time its binding. The messages are
// stranded. The tool names their queue, the time and the cause, and returns them when the queue is
// back. Their attempts go on, and none is lost.
func TestIncidentDeletedQueue(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	rig.DeclareExchange(t, node.URL(), "events", "topic")
	t.Run("strategies", func(t *testing.T) {
		for _, name := range slices.Sorted(maps.Keys(strandings)) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				queue, flags := testbroker.Queue(t), strandings[name].flags
				prefix := "of-" + queue
				s := &vanishing{
					service: &service{
						t: t, url: node.URL(), queue: queue, kind: "quorum",
						flags: append([]string{"--management", api, "--prefix", prefix}, flags...),
					},
					strategy: strandings[name].strategy(prefix), stranded: prefix + ".stranded",
					done: rig.NewCalls(),
				}
				s.queueDeleted()
				s.bindingDeleted()
				if name == "shared" {
					s.keyChanged(node)
				}
			})
		}
	})
}

const deleted = 20

func (s *vanishing) queueDeleted() {
	service := s.start()
	rig.Post(s.t, s.url, s.queue, shop.Numbered(0, deleted)...)
	testbroker.WaitFor(s.t, "all to have failed", patience,
		func() bool { return s.failed.Load() == deleted })
	service.Stop()
	rig.DeleteQueue(s.t, s.url, s.queue)
	waiting := deleted - s.done.Count() // the others came back before the queue was deleted
	require.Positive(s.t, waiting)
	s.awaitStranded(waiting, operate.CauseQueueGone)
	findings := s.tool("verify", s.queue, "--policy", waitForAll.String())
	require.Equal(s.t, exitFound, findings.code)
	require.Regexp(s.t, `critical: queue "of-orders.stranded": messages are stranded`, findings.out)

	log := filepath.Join(s.t.TempDir(), "audit.jsonl")
	none := s.tool("stranded", "return", "another", "--since", "1h", "--audit", log)
	require.Zero(s.t, none.code, none.err)
	require.Contains(s.t, none.out, "returned 0 stranded messages of ")
	old := s.tool("stranded", "list", "--until", "1h")
	require.Equal(s.t, "no such messages in queue \"of-orders.stranded\"\n", old.out)
	recent := s.tool("stranded", "list", "--since", "1h", "--json")
	require.Equal(s.t, waiting, strings.Count(recent.out, "\n"))

	left := s.tool("stranded", "return", s.queue, "--audit", log)
	require.Equal(s.t, exitFound, left.code, left.err)
	require.Contains(s.t, left.out, "returned 0 stranded messages of ")
	require.Contains(s.t, left.out, fmt.Sprintf("%d messages left: queue \"orders\" does not exist "+
		"or cannot be reached; --to names another\n", waiting))
	noted := s.tool("audit", "--audit", log).out // both were plain "done", of no queue
	require.Regexp(s.t, `  done: 0 of \d+\n    stranded return 'another', queue of-`, noted)
	require.Regexp(s.t, fmt.Sprintf("  failed: 0 of %d\n    stranded return 'orders', queue of-.*\n"+
		"    %d messages left: queue ", waiting, waiting), noted)
	service = s.start()
	defer service.Stop()
	require.Contains(s.t, s.tool("stranded", "return", s.queue, "--dry-run").out,
		fmt.Sprintf("would have returned %d stranded messages of ", waiting))
	s.returns(waiting, deleted)
}

func (s *vanishing) bindingDeleted() {
	service := s.start()
	defer service.Stop()
	for _, b := range rig.PlanOf(s.t, s.strategy, s.queue, waitForAll).Bindings {
		if b.Queue == s.queue {
			rig.Unbind(s.t, s.url, b)
		}
	}
	rig.Post(s.t, s.url, s.queue, shop.Numbered(deleted, 2*deleted)...)
	s.awaitStranded(deleted, operate.CauseBindingGone)
	blind := *s.service
	blind.flags = blind.flags[2:] // without the management API
	o := blind.tool("stranded", "list", s.queue)
	require.Contains(s.t, o.out, "unknown       queue \"orders\" exists, and its binding is not known")

	declared := s.tool("declare", s.queue, "--policy", waitForAll.String())
	require.Zero(s.t, declared.code, declared.err)
	s.awaitStranded(deleted, operate.CauseOver)
	shown := s.tool("stranded", "show", "order-20").out
	for _, want := range []string{
		"for queue    orders\n", "cause        over\n", "\nhistory\n", "payload",
	} {
		require.Contains(s.t, shown, want)
	}
	file := filepath.Join(s.t.TempDir(), "gone.jsonl")
	o = s.tool("stranded", "discard", s.queue, "--id", "order-20", "--export", file, "--yes")
	require.Equal(s.t, "discarded 1 stranded message of 20, kept in "+file+"\n", o.out, o.err)
	o = s.tool("dead", "import", s.queue, "--file", file, "--to", s.stranded)
	require.Zero(s.t, o.code, o.err)
	rig.AwaitDepth(s.t, s.url, s.stranded, deleted)
	s.returns(deleted, 2*deleted)
}

// keyChanged sets a policy that leads messages nowhere when their wait is over.
func (s *vanishing) keyChanged(node *testbroker.Node) {
	running := s.start()
	defer running.Stop()
	node.Ctl(s.t, "set_policy", "nowhere", `^of-.*\.wait\.`, `{"dead-letter-routing-key":"nowhere"}`)
	rig.Post(s.t, s.url, s.queue, shop.Numbered(2*deleted, 3*deleted)...)
	s.awaitStranded(deleted, operate.CauseKeyChanged)
	blind := *s.service
	blind.flags = blind.flags[2:]
	for _, see := range []*service{s.service, &blind} {
		o := see.tool("stranded", "list", s.queue, "--limit", "1")
		require.Contains(s.t, o.out,
			`key_changed   its routing key was changed from "orders" to "nowhere"`)
	}
	node.Ctl(s.t, "clear_policy", "nowhere")
	s.returns(deleted, 3*deleted)
}

// Queues are named where nothing lists them. The stranded queue is no dead-letter queue, and the
// text names the command for it. A prefix without a stranded queue is an error.
func TestStrandedCommandsRefuse(t *testing.T) {
	t.Parallel()
	s := newService(t, "classic")
	const missing = `queue "orders.stranded" does not exist or cannot be reached: name the prefix`
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"status", exitUsage, "name the queues"},
		{"stranded discard --all", exitUsage, "there is no terminal to ask on"},
		{"dead list Q --dlq millpond.stranded", exitUsage, "with millpond stranded"},
		{"dead replay Q --all --dlq x.stranded --prefix x", exitUsage, "with millpond stranded"},
		{"stranded list --prefix Q", exitFailed, missing},
		{"stranded return --all --prefix Q", exitFailed, missing},
	} {
		o := s.tool(strings.Fields(strings.ReplaceAll(c.args, "Q", s.queue))...)
		require.Equal(t, c.code, o.code, "%v: %s%s", c.args, o.out, o.err)
		require.Contains(t, o.err, c.want, c.args)
		require.NotContains(t, o.out, "no such messages")
	}
}

// Text of a message reaches no terminal as it is.
func TestStrandedMessageIsHostile(t *testing.T) {
	t.Parallel()
	s := newService(t, "classic")
	rig.DeclareQueue(t, s.url, s.queue+".stranded", nil)
	evil := "\x1b[31m\u202e\nred"
	s.publish(s.queue+".stranded", amqp.Publishing{MessageId: evil, Headers: amqp.Table{
		"millpond-queue": evil, "millpond-failures": "1", "millpond-error": evil,
	}})
	for _, args := range [][]string{
		{"list"}, {"show", evil}, {"return", "--all"}, {"list", "--json"}, {"export", "--all"},
	} {
		o := s.tool(append([]string{"stranded", "--prefix", s.queue}, args...)...)
		require.NotContains(t, o.out+o.err, "\x1b", args)
		require.Contains(t, o.out, "red", args)
		require.NotContains(t, o.out+o.err, "\u202e", args)
	}
	o := s.tool("stranded", "return", "--all", "--prefix", s.queue, "--json")
	require.Equal(t, exitFound, o.code)
	require.Contains(t, o.out, `"messages": 1`)
}
