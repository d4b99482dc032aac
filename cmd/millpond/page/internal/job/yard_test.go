package job_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/cmd/millpond/page/internal/job"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

func TestMain(m *testing.M) {
	if words := os.Getenv(mortalServer); words != "" {
		queue, folder, _ := strings.Cut(words, "|")
		if err := beServer(queue, folder); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testbroker.Main(m, func() error { return goleak.Find() })
}

// yard is a queue with its plan on the broker, and a Manager.
type yard struct {
	*job.Manager
	t           testing.TB
	url         string
	queue, dead string
	folder      string
	plan        topology.Plan
	operator    *operate.Operator
}

func newYard(t testing.TB, kind topology.QueueType) *yard {
	t.Helper()
	y := &yard{t: t, url: testbroker.URL(t), queue: testbroker.Queue(t), folder: t.TempDir()}
	y.operator = rig.OpenOperator(t, y.url, operate.WithoutPolicyCheck())
	args := amqp.Table{"x-queue-type": cmp.Or(string(kind), "quorum")}
	if kind != topology.Classic {
		args["x-delivery-limit"] = int64(1 << 30)
	}
	rig.DeclareQueue(t, y.url, y.queue, args)
	strategy := topology.PerQueue{Type: kind}
	y.plan = rig.PlanFor(t, y.queue, strategy, backoff.List{time.Second, time.Hour})
	testbroker.Delete(t, rig.QueueNames(y.plan)...)
	require.NoError(t, y.operator.Declare(t.Context(), y.plan))
	y.dead = y.plan.Dead.RoutingKey
	y.open()
	return y
}

// planOf knows the plan of the yard's queue.
func (y *yard) planOf(_ context.Context, queue string) (topology.Plan, error) {
	if queue != y.queue {
		return topology.Plan{}, fmt.Errorf("no queue %q", queue)
	}
	return y.plan, nil
}

func (y *yard) connected(context.Context) (*operate.Operator, error) { return y.operator, nil }

// open opens the Manager, as a server does when it starts.
func (y *yard) open() {
	y.t.Helper()
	m, err := job.Open(job.Options{Operator: y.connected, Plan: y.planOf, Folder: y.folder})
	require.NoError(y.t, err)
	y.Manager = m
	y.t.Cleanup(func() { require.NoError(y.t, m.Close()) })
}

const refused = "connection refused"

// letter is dead letter i with an error.
func (y *yard) letter(i int, text string) amqp.Publishing {
	at := time.Date(2026, 3, 1, 12, 0, i%60, 0, time.UTC)
	return shop.Letter(y.queue, fmt.Sprint("order-", i), text, at, fmt.Appendf(nil, "body %d", i), nil)
}

// die publishes dead letters from number from on.
func (y *yard) die(from, n int, text string) {
	y.t.Helper()
	var letters []amqp.Publishing
	for i := range n {
		letters = append(letters, y.letter(from+i, text))
	}
	rig.Post(y.t, y.url, y.dead, letters...)
}

// numbered are the bodies of letters from number from on.
func numbered(from, n int) []string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprint("body ", from+i))
	}
	return list
}

func (y *yard) depth(queue string, n int) {
	y.t.Helper()
	rig.AwaitDepth(y.t, y.url, queue, n)
}

// consume takes the messages of the queue as a service does, and sends their bodies.
func (y *yard) consume() (bodies chan string) {
	y.t.Helper()
	ch := testbroker.Channel(y.t, y.url)
	deliveries, err := ch.Consume(y.queue, "service", false, false, false, false, nil)
	require.NoError(y.t, err)
	bodies = make(chan string, 10_000)
	go func() {
		for d := range deliveries {
			_ = d.Ack(false)
			bodies <- string(d.Body)
		}
	}()
	return bodies
}

// rehearse rehearses for alice.
func (y *yard) rehearse(r job.Request) job.Rehearsal {
	y.t.Helper()
	r.Queue = cmp.Or(r.Queue, y.queue)
	h, err := y.Rehearse(y.t.Context(), "alice", r, nil)
	require.NoError(y.t, err)
	return h
}

// confirm starts a rehearsed action.
func (y *yard) confirm(h job.Rehearsal) job.Action {
	y.t.Helper()
	a, err := y.Start("alice", h.ID, h.Digest)
	require.NoError(y.t, err)
	return a
}

// does confirms a rehearsed action, and awaits that it has moved n messages.
func (y *yard) does(h job.Rehearsal, n int) job.Action {
	y.t.Helper()
	a := y.ended(y.confirm(h).ID)
	require.Equal(y.t, job.StateDone, a.State, a.Error)
	require.Equal(y.t, n, a.Progress.Done)
	return a
}

// holds takes all messages out of a queue, and requires that they are these.
func (y *yard) holds(queue string, want ...string) {
	y.t.Helper()
	require.Equal(y.t, want, rig.Bodies(rig.Drain(y.t, y.url, queue, len(want))))
}

// texts returns the texts of the files of the folder whose names match a pattern.
func (y *yard) texts(pattern string) (list []string) {
	y.t.Helper()
	names, err := filepath.Glob(filepath.Join(y.folder, pattern))
	require.NoError(y.t, err)
	require.NotEmpty(y.t, names)
	for _, name := range names {
		data, err := os.ReadFile(name)
		require.NoError(y.t, err)
		list = append(list, string(data))
	}
	return list
}

// ended awaits the end of an action.
func (y *yard) ended(id string) job.Action {
	y.t.Helper()
	return y.await(id, "its end", func(a job.Action) bool { return !a.Active() })
}

func (y *yard) await(id, what string, is func(job.Action) bool) job.Action {
	y.t.Helper()
	var a job.Action
	rig.WaitFor(y.t, "action "+id+": "+what, func() bool {
		var err error
		a, err = y.Action(id)
		require.NoError(y.t, err)
		return is(a)
	})
	return a
}

// quick is a replay that is watched for a short time.
func quick(f operate.Filter) job.Request {
	return job.Request{
		Kind: job.Replay, Filter: f, All: f.IsZero(), Settle: 300 * time.Millisecond, Watch: time.Second,
	}
}
