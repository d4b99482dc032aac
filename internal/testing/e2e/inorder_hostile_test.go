package e2e_test

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/internal/testing/memnet"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
)

// Given a message in the line that this library has not written, when the process leads and when
// another takes over, then the queue goes on.
func TestAForgedMessageInTheLineStopsNothing(t *testing.T) {
	t.Parallel()
	const huge = "18446744073709551615"
	far := time.Now().AddDate(1, 0, 0).UTC().Format(time.RFC3339Nano)
	token := func(epoch, ahead, crashes string) amqp.Table {
		return amqp.Table{keys.Line: "token " + epoch + " x " + ahead + " " + crashes + " 0-0"}
	}
	wait := func(number, id string) amqp.Table {
		return amqp.Table{keys.Line: "wait " + number + " " + id, keys.Key: "a"}
	}
	for name, headers := range map[string]amqp.Table{
		"a token with a huge epoch":         token(huge, "65536", "9223372036854775807"),
		"a token with a large epoch":        token("9223372036854775808", "1", "1"),
		"a token of the most ended leaders": token("9", "1", "1000"),
		"a token with words left out":       {keys.Line: "token"},
		"huge numbers":                      wait(huge, huge+"-"+huge),
		"large numbers":                     wait("7", "9223372036854775807-7"),
		"a time that is far away": {
			keys.Line: "wait 1 1-1", keys.Key: "a", keys.NotBefore: far,
		},
		"no header": {},
		"headers of other types": {
			keys.Line: int64(7), keys.Key: []byte("a"), keys.NotBefore: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var handled bodies
			c := orderedBy(inorder.Strategy{}, often(100*time.Millisecond),
				func(msg *message.Message) error {
					handled.add(string(msg.Payload))
					return nil
				})
			r := rig.Start(t, c)
			r.Send("a:0", "b:0")
			rig.WaitFor(t, "both messages are handled", func() bool { return handled.len() == 2 })
			rig.Publish(t, r.URL, "", r.Queue+".line", amqp.Publishing{
				DeliveryMode: amqp.Persistent, Headers: headers, Body: []byte("x:0"),
			})
			r.Send("a:1", "b:1")
			within(t, 20*time.Second, "the process goes on", func() bool {
				return len(handled.of("a"))+len(handled.of("b")) == 4
			})
			for i := range 2 {
				r.Stop()
				c.Queue, c.Keep = r.Queue, true
				r = rig.Start(t, c)
				r.Send("a:"+strconv.Itoa(2+i), "b:"+strconv.Itoa(2+i))
				within(t, 20*time.Second, "the next process goes on", func() bool {
					return len(handled.of("a")) == 3+i && len(handled.of("b")) == 3+i
				})
			}
			require.Equal(t, ofKey("a", 4), handled.of("a"))
			require.Equal(t, ofKey("b", 4), handled.of("b"))
		})
	}
}

// Given a number in the line that this library has not written, then epochs go on to rise, from
// process to process: a fencing token that falls lets the user's database refuse every write.
func TestAForgedEpochLetsNoEpochFall(t *testing.T) {
	t.Parallel()
	const highest = "9007199254740992" // 1<<53
	token := func(epoch string) string { return "token " + epoch + " x 1 0 0-0" }
	for name, c := range map[string]struct {
		note string
		down bool // while no process is up
		told int  // log lines
	}{
		"a token":                      {token(highest), false, 1},
		"a token while none is up":     {token(highest), true, 1},
		"a token that might be true":   {token("1000000"), false, 0},
		"a low token while none is up": {token("1"), true, 0},
		"a copy":                       {"wait 1 " + highest + "-7", false, 0},
		"a copy while none is up":      {"wait 1 " + highest + "-7", true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
				epochs := make(chan uint64, 100)
				cfg := orderedBy(inorder.Strategy{}, often(time.Second), func(msg *message.Message) error {
					epochs <- middleware.StateOf(msg.Context()).Epoch
					return nil
				})
				cfg.URL, cfg.Queue, cfg.Keep = broker.URL(), "orders", true
				forge := func() {
					rig.Publish(t, broker.URL(), "", "orders.line", amqp.Publishing{Headers: amqp.Table{
						keys.Line: c.note, keys.Key: "b",
					}})
					<-time.After(5 * time.Second)
				}
				var last uint64
				told := 0
				for i := range 4 {
					r := rig.Start(t, cfg)
					r.Send("a:0")
					<-time.After(5 * time.Second)
					if i == 1 && !c.down {
						forge()
						r.Send("a:1")
						<-time.After(5 * time.Second)
					}
					told += r.Logs.Said("A note in the line is not believed")
					r.Stop()
					if i == 1 && c.down {
						forge()
					}
					require.NotEmpty(t, epochs)
					for len(epochs) > 0 {
						epoch := <-epochs
						require.GreaterOrEqual(t, epoch, last)
						last = epoch
					}
				}
				require.Less(t, last, uint64(1<<21))
				require.Equal(t, c.told, told)
			})
		})
	}
}

// Given a process that has led, has lost its connection and stands by, when a forged epoch counts
// for a process after it, then its own next epoch is not lower.
func TestAForgedEpochAndAProcessThatHasLedBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Bool
		broker := peer.Start(t, func(p *peer.Publish) {
			if p.RoutingKey == "orders.line" && cut.Swap(false) {
				p.Cut(false)
				return
			}
			rig.WaitQueues(p)
		})
		var mu sync.Mutex
		var last uint64
		var leader string
		now := func() (uint64, string) {
			mu.Lock()
			defer mu.Unlock()
			return last, leader
		}
		start := func(name string) *rig.Service {
			cfg := orderedBy(inorder.Strategy{}, often(time.Second), func(msg *message.Message) error {
				mu.Lock()
				defer mu.Unlock()
				epoch := middleware.StateOf(msg.Context()).Epoch
				assert.GreaterOrEqual(t, epoch, last, name)
				last, leader = epoch, name
				return nil
			})
			cfg.URL, cfg.Queue, cfg.Keep = broker.URL(), "orders", true
			s := rig.Start(t, cfg)
			time.Sleep(5 * time.Second)
			return s
		}
		first := start("first")
		send := func(body string) {
			first.Send(body)
			time.Sleep(5 * time.Second)
		}
		send("a:0")
		start("second")
		third := start("third")
		cut.Store(true)
		time.Sleep(30 * time.Second)
		send("a:1")
		led, _ := now()
		rig.Publish(t, broker.URL(), "", "orders.line", amqp.Publishing{Headers: amqp.Table{
			keys.Line: fmt.Sprintf("token %d x 1 0 0-0", led+1<<20),
		}})
		time.Sleep(30 * time.Second)
		send("a:2")
		led, who := now()
		require.Equal(t, "third", who)
		require.Greater(t, led, uint64(1<<20))
		third.Stop()
		time.Sleep(40 * time.Second)
		send("a:3")
		_, who = now()
		require.NotEqual(t, "third", who)
	})
}

// Given a user whose tokens no process would believe, because he is not named or because the broker
// knows him by another name, when he subscribes, then he is told.
func TestAUserWhoIsNotBelievedMayNotLead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		users       []string
		known, says string
		alarm       bool // the broker reads no publish
	}{
		"not named":       {[]string{"shop", "anna"}, "guest", `and not the user "guest"`, false},
		"another name":    {[]string{"guest"}, "client-7", "the broker refuses the name", false},
		"named as such":   {[]string{"anna", "guest"}, "guest", "", false},
		"during an alarm": {[]string{"guest"}, "guest", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				over := make(chan struct{})
				broker := peer.Start(t, func(p *peer.Publish) {
					if c.alarm {
						<-over
					}
					if p.RoutingKey == "orders.line" && c.known != "guest" {
						p.CloseChannel(amqp.PreconditionFailed, "user_id property set to 'guest' but "+
							"authenticated user was '"+c.known+"'")
						return
					}
					p.Accept()
				})
				cfg := rig.QueueConfig(broker.URL())
				cfg.Queue.Arguments = rig.OneActive()
				cfg.Connection.AmqpConfig = &amqp.Config{Dial: memnet.Dial}
				client := rig.OpenWith(t, cfg.Connection, inorder.Strategy{KeyBy: keyOf},
					topology.WithControlUsers(c.users...))
				t.Cleanup(func() { close(over) })
				err := rig.SubscribeError(t, client, cfg, "orders", often(time.Second))
				if c.says == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.says)
				}
			})
		})
	}
}

// within waits for less long than rig.WaitFor.
func within(t *testing.T, limit time.Duration, condition string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, limit, 20*time.Millisecond, condition)
}

// Given a message that still waits in rounds, when it comes behind a failed message of its key,
// then it waits to the end.
func TestAMessageThatFollowsKeepsItsDelay(t *testing.T) {
	t.Parallel()
	var handled bodies
	var failed atomic.Bool
	at := make(chan time.Time, 1)
	handle := func(msg *message.Message) error {
		if string(msg.Payload) == "a:0" && failed.CompareAndSwap(false, true) {
			return errNotYet
		}
		handled.add(string(msg.Payload))
		if string(msg.Payload) == "a:1" {
			at <- time.Now()
		}
		return nil
	}
	r := rig.Start(t, orderedBy(inorder.Strategy{}, often(time.Second), handle))
	r.Send("a:0")
	rig.WaitFor(t, "the first message fails", failed.Load)
	due := time.Now().Add(5 * time.Second)
	later := rig.Message("a:1")
	later.Headers = amqp.Table{
		header.Queue: r.Queue, keys.Snoozed: "10s",
		keys.NotBefore: due.UTC().Format(time.RFC3339Nano),
	}
	r.Publish(later)
	require.WithinRange(t, rig.Await(t, at), due.Add(-rig.Grace), due.Add(rig.Ceiling))
	require.Equal(t, ofKey("a", 2), handled.of("a"))
	r.RequireNothingLeft(0)
}

// Given keys that are long, or no text, then they have an order, and a person can release them.
func TestUnusualKeys(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{
		"10 kB":    strings.Repeat("k", 10_000),
		"200 kB":   strings.Repeat("k", 200_000),
		"no UTF-8": "\xff\xfe\x00",
	} {
		for _, block := range []bool{false, true} {
			t.Run(name+" "+strconv.FormatBool(block), func(t *testing.T) {
				t.Parallel()
				var handled bodies
				var failed atomic.Int32
				r := rig.Start(t, orderedBy(inorder.Strategy{
					Block: block, KeyBy: func(*message.Message) string { return key },
				}, backoff.List{100 * time.Millisecond}, func(msg *message.Message) error {
					if string(msg.Payload) == "a:1" {
						failed.Add(1)
						return errNotYet
					}
					handled.add(string(msg.Payload))
					return nil
				}))
				r.Send(ofKey("a", 4)...)
				dead := r.DeadLetter()
				rig.RequireDead(t, dead, "exhausted", "2")
				if block {
					note := order.ParseNote(dead.Headers[keys.DeadLine].(string))
					rig.Publish(t, r.URL, "", r.Queue+".line", amqp.Publishing{Headers: amqp.Table{
						keys.Key:  dead.Headers[keys.DeadKey],
						keys.Line: order.Note{Kind: order.Release, ID: note.ID}.String(),
					}})
				}
				within(t, 20*time.Second, "all others are handled", func() bool { return handled.len() == 3 })
				require.Equal(t, []string{"a:0", "a:2", "a:3"}, handled.of("a"))
				r.RequireNothingLeft(0)
			})
		}
	}
}

// quitter is a marshaler that ends its goroutine at one message.
type quitter struct{ wamqp.DefaultMarshaler }

func (q *quitter) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	if string(d.Body) == "quit" {
		runtime.Goexit()
	}
	return q.DefaultMarshaler.Unmarshal(d)
}

// A function of the user that ends its goroutine stops nothing but its message.
func TestAKeyThatEndsItsGoroutineStopsNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		marshaler wamqp.Marshaler
		keyBy     func(*message.Message) string
	}{
		"the marshaler": {&quitter{}, keyOf},
		"KeyBy": {wamqp.DefaultMarshaler{}, func(msg *message.Message) string {
			if string(msg.Payload) == "quit" {
				runtime.Goexit()
			}
			return keyOf(msg)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var handled bodies
			cfg := orderedBy(inorder.Strategy{KeyBy: c.keyBy}, often(100*time.Millisecond),
				func(msg *message.Message) error {
					handled.add(string(msg.Payload))
					return nil
				})
			configure := cfg.Configure
			cfg.Configure = func(cfg *wamqp.Config) {
				configure(cfg)
				cfg.Marshaler = c.marshaler
			}
			r := rig.Start(t, cfg)
			r.Send("a:0", "quit", "a:1")
			within(t, 20*time.Second, "the others are handled", func() bool {
				return len(handled.of("a")) == 2
			})
		})
	}
}
