package operate_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
	"github.com/millpond-go/millpond/topology/operate"
)

// keyed is a queue that is handled in order, with Block, and an operator. A message whose body
// begins with "bad " fails until it is mended.
type keyed struct {
	*operate.Operator
	t      testing.TB
	url    string
	via    string // of a service; default: url
	queue  string
	plan   topology.Plan
	mended atomic.Bool

	mu   sync.Mutex
	done []string
}

var oneActive = amqp.Table{
	"x-queue-type": "quorum", "x-single-active-consumer": true, "x-delivery-limit": int64(1 << 30),
}

func newKeyed(t testing.TB) *keyed {
	t.Helper()
	k := &keyed{t: t, url: testbroker.URL(t), queue: testbroker.Queue(t)}
	k.Operator = rig.OpenOperator(t, k.url, operate.WithoutPolicyCheck())
	rig.DeclareQueue(t, k.url, k.queue, oneActive)
	var err error
	k.plan, err = inorder.Strategy{}.Plan(k.queue, []time.Duration{})
	require.NoError(t, err)
	testbroker.Delete(t, k.queue+".line", k.queue+".dlq", k.queue+".dlq.originals")
	require.NoError(t, k.Declare(t.Context(), k.plan))
	return k
}

// replays replays the letters of a key, of which there are n.
func (k *keyed) replays(key string, n int) {
	k.t.Helper()
	p, err := k.ReplayKey(k.t.Context(), k.plan, key, operate.MoveOptions{})
	require.NoError(k.t, err)
	require.Equal(k.t, n, p.Done)
}

// refuses requires that a letter which blocks its key is not replayed like others.
func (k *keyed) refuses() {
	k.t.Helper()
	for _, dry := range []bool{true, false} {
		p, err := k.Replay(k.t.Context(), k.plan, operate.MoveOptions{DryRun: dry})
		require.ErrorContains(k.t, err, "millpond order replay")
		require.Equal(k.t, []int{p.Chosen, 0}, []int{p.Refused, p.Done})
	}
}

// serve starts a process. A message fails once before it is dead.
func (k *keyed) serve(block bool) *rig.Service {
	k.t.Helper()
	return rig.Start(k.t, rig.Config{
		URL: k.via, AdminURL: k.url, Queue: k.queue, Keep: true, Configure: rig.WithQueue(oneActive),
		Strategy: inorder.Strategy{Block: block, KeyBy: func(msg *message.Message) string {
			return msg.Metadata.Get("key")
		}},
		Policy: backoff.List{50 * time.Millisecond},
		Handle: func(msg *message.Message) error {
			body := string(msg.Payload)
			if strings.HasPrefix(body, "bad ") && !k.mended.Load() {
				return errors.New("no such customer")
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			k.done = append(k.done, body)
			return nil
		},
	})
}

// handled returns the bodies that were handled.
func (k *keyed) handled() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]string{}, k.done...)
}

func (k *keyed) send(key string, bodies ...string) {
	k.t.Helper()
	for _, body := range bodies {
		m := rig.Message(body)
		m.MessageId, m.Headers = "id of "+body, amqp.Table{"key": key}
		rig.Publish(k.t, k.url, "", k.queue, m)
	}
}

// state asks until the answer is as it should be.
func (k *keyed) state(
	what string, is func(operate.OrderState) bool,
) (state operate.OrderState) {
	k.t.Helper()
	rig.WaitFor(k.t, what, func() bool {
		var err error
		state, err = k.Order(k.t.Context(), k.plan)
		return err == nil && is(state)
	})
	return state
}

// blocked waits until the key is blocked and n messages wait behind its letter.
func (k *keyed) blocked(key string, n int) operate.OrderKey {
	k.t.Helper()
	k.depth(".dlq")
	s := k.state("a blocked key", func(s operate.OrderState) bool {
		found, _ := s.Find(key)
		return found.Mark != "" && found.Waiting == n
	})
	found, _ := s.Find(key)
	return found
}

// depth waits until a queue has messages.
func (k *keyed) depth(suffix string) {
	k.t.Helper()
	rig.WaitFor(k.t, "a message in "+suffix, func() bool {
		return testbroker.Depth(k.t, k.url, k.queue+suffix) > 0
	})
}

// ends waits until these messages were handled, in this order, and nothing is left.
func (k *keyed) ends(bodies ...string) {
	k.t.Helper()
	rig.WaitFor(k.t, "all messages to be handled", func() bool {
		return len(k.handled()) >= len(bodies)
	})
	require.Equal(k.t, bodies, k.handled())
	k.state("an empty line", func(s operate.OrderState) bool { return s.Messages == 0 })
}

// Given a dead letter that blocks its key, when a person asks, then the process that leads tells
// it. Only ReplayKey replays it. While it fails again it blocks again, and no message overtakes it.
// At last it is handled before the messages that came after it.
func TestALetterThatBlocksItsKeyIsReplayedInItsPlace(t *testing.T) {
	t.Parallel()
	k := newKeyed(t)
	service := k.serve(true)
	k.send("order 17", "bad placed", "paid", "sent")
	k.send("order 18", "placed")
	found := k.blocked("order 17", 2)
	require.Equal(t, "id of bad placed", found.MessageID)
	require.WithinDuration(t, time.Now(), found.Blocked, time.Minute)
	s, err := k.Order(t.Context(), k.plan)
	require.NoError(t, err)
	require.NotEmpty(t, s.Instance)
	require.NotZero(t, s.Epoch)
	require.Equal(t, 10000, s.MaxMessages)
	require.Equal(t, 3, s.Messages)
	require.Equal(t, []operate.OrderKey{found}, s.BlockedKeys())
	k.refuses()
	p, err := k.ReplayKey(t.Context(), k.plan, "order 17", operate.MoveOptions{DryRun: true})
	require.NoError(t, err)
	require.Equal(t, operate.Progress{Total: 1, Seen: 1, Chosen: 1}, p)
	require.Equal(t, found.Mark, k.blocked("order 17", 2).Mark)

	k.replays("order 17", 1)
	k.state("another mark", func(s operate.OrderState) bool {
		again, _ := s.Find("order 17")
		return again.Mark != "" && again.Mark != found.Mark && again.Waiting == 2
	})
	require.Equal(t, []string{"placed"}, k.handled())
	k.depth(".dlq")
	k.mended.Store(true)
	p, err = k.ReplayKey(t.Context(), k.plan, "order 17", operate.MoveOptions{})
	require.NoError(t, err)
	require.Equal(t, operate.Progress{Total: 1, Seen: 1, Chosen: 1, Done: 1}, p)
	k.ends("placed", "bad placed", "paid", "sent")
	service.RequireNothingLeft(0)
}

// Given a process with Block, when a person releases a key, then it goes on without its letter. A
// second release, and one with an old ID, do nothing. When the key is replayed, then the letter
// that blocks comes in its place, and the letters whose key went on come behind all.
func TestAReleaseHoldsForOneLetter(t *testing.T) {
	t.Parallel()
	k := newKeyed(t)
	service := k.serve(true)
	k.send("a", "bad 1", "2", "bad 3", "4", "bad 5", "6")
	mark := k.blocked("a", 5).Mark
	require.ErrorIs(t, k.ReleaseKey(t.Context(), k.plan, "b", mark), operate.ErrNotBlocked)
	for _, waiting := range []int{3, 1} {
		require.NoError(t, k.ReleaseKey(t.Context(), k.plan, "a", mark))
		before := mark
		mark = k.state("the next letter", func(s operate.OrderState) bool {
			found, _ := s.Find("a")
			return found.Mark != "" && found.Mark != before && found.Waiting == waiting
		}).Keys[0].Mark
		require.ErrorIs(t, k.ReleaseKey(t.Context(), k.plan, "a", before), operate.ErrNotBlocked)
		k.blocked("a", waiting)
	}
	rig.AwaitDepth(t, k.url, k.queue+".dlq", 3)
	k.mended.Store(true)
	k.replays("a", 3)
	k.ends("2", "4", "bad 5", "6", "bad 1", "bad 3")
	require.ErrorIs(t, k.ReleaseKey(t.Context(), k.plan, "a", mark), operate.ErrNotBlocked)
	service.RequireNothingLeft(0)
}

// Given no process, when a person asks, then the tool reads the line and changes nothing. The
// decisions of the person count when a process starts. It takes the lead though looks follow each
// other without a pause, and no message changes its place.
func TestTheLineIsReadWithoutAService(t *testing.T) {
	t.Parallel()
	k := newKeyed(t)
	service := k.serve(true)
	k.send("a", "bad 1", "2", "3")
	k.send("b", "bad 1 of b", "2 of b")
	k.send("b", "3 of b")
	want := k.blocked("a", 2)
	k.blocked("b", 2)
	service.Stop()
	for range 3 {
		s, err := k.Order(t.Context(), k.plan)
		require.NoError(t, err)
		require.Empty(t, s.Instance)
		require.NotZero(t, s.Epoch)
		require.Equal(t, 6, s.Messages)
		require.Len(t, s.BlockedKeys(), 2)
		got, _ := s.Find("a")
		require.Equal(t, want.Blocked.Unix(), got.Blocked.Unix())
		got.Blocked = want.Blocked
		require.Equal(t, want, got)
	}
	k.replays("a", 1)
	bMark := k.blocked("b", 2).Mark
	require.NoError(t, k.ReleaseKey(t.Context(), k.plan, "b", bMark))
	require.ErrorIs(t, k.ReleaseKey(t.Context(), k.plan, "b", bMark), operate.ErrNotBlocked)
	s, err := k.Order(t.Context(), k.plan)
	require.NoError(t, err)
	require.Empty(t, s.BlockedKeys())
	require.Empty(t, k.handled())

	k.mended.Store(true)
	over, looks := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for ctx := t.Context(); ; n++ {
			select {
			case <-over:
				looks <- n
				return
			default:
				_, _ = k.Order(ctx, k.plan) // an error while the leader changes is none of the test
			}
		}
	}()
	service = k.serve(true)
	rig.WaitFor(t, "all messages to be handled", func() bool { return len(k.handled()) == 5 })
	close(over)
	require.Positive(t, <-looks)
	of := slices.DeleteFunc(k.handled(), func(body string) bool {
		return strings.HasSuffix(body, "of b")
	})
	require.Equal(t, []string{"bad 1", "2", "3"}, of)
	k.state("an empty line", func(s operate.OrderState) bool { return s.Messages == 0 })
	service.RequireNothingLeft(1)
}

// Given hostile keys, then each is shown whole, and released or replayed.
func TestHostileKeysAreReleasedAndReplayed(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{
		"control characters": "a\x1b[2J\r\n\x00b", "long": strings.Repeat("k", 10_000),
		"HTML": "<script>alert(1)</script>", "no UTF-8": "\xff\xfe", "spaces": " ", "note": "wait 1 1-1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKeyed(t)
			service := k.serve(true)
			k.send(key, "bad 1", "2")
			raw := key
			key := order.KeyText(key) // long keys and other bytes are shown as short text
			found := k.blocked(key, 1)
			require.Equal(t, key, found.Key)
			text, err := json.Marshal(found)
			require.NoError(t, err)
			var again operate.OrderKey
			require.NoError(t, json.Unmarshal(text, &again))
			require.Equal(t, key, again.Key)
			k.mended.Store(true)
			k.replays(key, 1)
			k.ends("bad 1", "2")
			k.mended.Store(false)
			k.send(raw, "bad 3", "4")
			require.NoError(t, k.ReleaseKey(t.Context(), k.plan, key, k.blocked(key, 1).Mark))
			k.ends("bad 1", "2", "4")
			service.RequireNothingLeft(1)
		})
	}
}

// Given an edit that takes the headers away, and after which the letter is too large, also by the
// headers of its place alone, then it stays, and its key is blocked. When it fits, then it keeps
// its key and its place, and its original is kept. Given a letter that was discarded, then a replay
// says that the key is blocked by nothing that could be replayed, and does nothing.
func TestAnEditedLetterKeepsKeyAndPlace(t *testing.T) {
	t.Parallel()
	k := newKeyed(t)
	k.serve(true)
	k.send("a", "bad 1", "2")
	k.blocked("a", 1)
	for size, fits := 128<<10, false; !fits; size -= 50 {
		p, err := k.ReplayKey(t.Context(), k.plan, "a", operate.MoveOptions{
			Edit: func(_ operate.Letter, msg *amqp.Publishing) error {
				msg.Headers = amqp.Table{"long": strings.Repeat("x", size)}
				msg.Body, msg.Priority = []byte("mended 1"), 9
				return nil
			},
		})
		if fits = err == nil; !fits {
			require.ErrorIs(t, err, topology.ErrTooLarge)
			k.blockedStill("a")
		}
		require.Equal(t, fits, p.Done == 1)
	}
	k.ends("mended 1", "2")
	original := rig.Take(t, k.url, k.queue+".dlq.originals")
	require.Equal(t, "bad 1", string(original.Body))
	require.Equal(t, "a", original.Headers[keys.DeadKey])

	k.send("a", "bad 3", "4")
	k.blocked("a", 1)
	_, err := k.Discard(t.Context(), k.plan, operate.MoveOptions{})
	require.NoError(t, err)
	_, err = k.ReplayKey(t.Context(), k.plan, "a", operate.MoveOptions{})
	require.ErrorIs(t, err, operate.ErrUnsafe)
	require.ErrorContains(t, err, `"id of bad 3" blocks the key`)
	k.blockedStill("a")
}

func (k *keyed) blockedStill(key string) {
	k.t.Helper()
	s, err := k.Order(k.t.Context(), k.plan)
	require.NoError(k.t, err)
	found, _ := s.Find(key)
	require.NotEmpty(k.t, found.Mark)
}

// Given a process without Block, then letters never block, and go back in their order. A queue
// without an order, and options that make no sense, are refused.
func TestLettersOfAKeyThatGoesOnAreReplayedInOrder(t *testing.T) {
	t.Parallel()
	k := newKeyed(t)
	k.serve(false)
	k.send("a", "bad 1", "bad 2", "3")
	k.send("b", "bad of b")
	rig.AwaitDepth(t, k.url, k.queue+".dlq", 3)
	s := k.state("an empty line", func(s operate.OrderState) bool { return s.Messages == 0 })
	require.Empty(t, s.Keys)
	k.mended.Store(true)
	p, err := k.ReplayKey(t.Context(), k.plan, "a", operate.MoveOptions{})
	require.NoError(t, err)
	require.Equal(t, operate.Progress{Total: 3, Seen: 3, Chosen: 2, Done: 2}, p)
	k.ends("3", "bad 1", "bad 2")
	p, err = k.Replay(t.Context(), k.plan, operate.MoveOptions{})
	require.NoError(t, err)
	require.Equal(t, 1, p.Done)
	k.ends("3", "bad 1", "bad 2", "bad of b")

	plain := topology.Plan{Queue: k.queue}
	_, err = k.Order(t.Context(), plain)
	require.ErrorIs(t, err, operate.ErrInvalidOptions)
	require.ErrorIs(t, k.ReleaseKey(t.Context(), plain, "a", "1-1"), operate.ErrInvalidOptions)
	for _, c := range []struct {
		plan    topology.Plan
		key     string
		options operate.MoveOptions
	}{
		{k.plan, "a", operate.MoveOptions{To: "other"}},
		{k.plan, "a", operate.MoveOptions{Named: true}},
		{k.plan, "a", operate.MoveOptions{Limit: -1}},
		{plan: k.plan},
		{plan: plain, key: "a"},
	} {
		_, err = k.ReplayKey(t.Context(), c.plan, c.key, c.options)
		require.ErrorIs(t, err, operate.ErrInvalidOptions)
	}
}

// replaysUntil tells this test binary to be the process that is killed: a queue and a step.
const replaysUntil = "MILLPOND_TEST_REPLAYS_UNTIL"

// Given a replay that is killed between two steps, then nothing is lost and nothing overtakes, and
// the next replay ends it.
func TestAReplayOfAKeyIsKilled(t *testing.T) {
	if words := os.Getenv(replaysUntil); words != "" {
		queue, at, _ := strings.Cut(words, "|")
		operate.OnReplayStep(func(name string) {
			if name == at {
				p, _ := os.FindProcess(os.Getpid())
				_ = p.Kill()
				select {}
			}
		})
		o := rig.OpenOperator(t, os.Getenv("AMQP_URL"), operate.WithoutPolicyCheck())
		plan, err := inorder.Strategy{}.Plan(queue, []time.Duration{})
		require.NoError(t, err)
		_, err = o.ReplayKey(t.Context(), plan, "a", operate.MoveOptions{})
		require.NoError(t, err)
		return
	}
	t.Parallel()
	for at, services := range map[string][]bool{
		"a copy is confirmed": {true, false}, "the old queue has the acks": {true, false},
	} {
		for _, running := range services {
			t.Run(fmt.Sprintf("%s, running %t", at, running), func(t *testing.T) {
				t.Parallel()
				k := newKeyed(t)
				service := k.serve(true)
				k.send("a", "bad 1", "2", "3")
				k.blocked("a", 2)
				if !running {
					service.Stop()
				}
				k.mended.Store(true)
				child := exec.Command(os.Args[0], "-test.run=^TestAReplayOfAKeyIsKilled$")
				child.Env = append(os.Environ(), replaysUntil+"="+k.queue+"|"+at, "AMQP_URL="+k.url)
				out, err := child.CombinedOutput()
				require.Error(t, err, "it was killed: %s", out)
				require.Empty(t, k.handled(), "no message has overtaken")
				rig.WaitFor(t, "the next replay to end it", func() bool {
					_, err := k.ReplayKey(t.Context(), k.plan, "a", operate.MoveOptions{})
					require.NoError(t, err)
					s, err := k.Order(t.Context(), k.plan)
					found, _ := s.Find("a")
					return err == nil && found.Mark == "" && testbroker.Depth(t, k.url, k.queue+".dlq") == 0
				})
				if !running {
					service = k.serve(true)
				}
				rig.WaitFor(t, "all messages to be handled", func() bool {
					done := k.handled()
					return len(done) > 0 && done[len(done)-1] == "3"
				})
				var once []string
				for i, body := range k.handled() {
					if i == 0 || body != k.handled()[i-1] {
						once = append(once, body)
					}
				}
				require.Equal(t, []string{"bad 1", "2", "3"}, once)
				service.RequireNothingLeft(0)
			})
		}
	}
}
