package e2e_test

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
)

// Given a message in the line that this library has not written, while a process leads or none is
// up, when other processes take over, then the queue goes on in its order. Epochs go on to rise,
// from process to process: a fencing token that falls lets the user's database refuse every write.
func TestAForgedMessageInTheLineStopsNothing(t *testing.T) {
	t.Parallel()
	const huge, highest = "18446744073709551615", "9007199254740992" // 1<<53
	far := time.Now().AddDate(1, 0, 0).UTC().Format(time.RFC3339Nano)
	token := func(epoch, ahead, crashes string) amqp.Table {
		return amqp.Table{keys.Line: "token " + epoch + " x " + ahead + " " + crashes + " 0-0"}
	}
	wait := func(number, id string) amqp.Table {
		return amqp.Table{keys.Line: "wait " + number + " " + id, keys.Key: "a"}
	}
	for name, c := range map[string]struct {
		headers amqp.Table
		told    int // log lines
	}{
		"a token of an impossible epoch":    {token(highest, "1", "0"), 1},
		"a token with a huge epoch":         {token(huge, "65536", "9223372036854775807"), 1},
		"a token with a large epoch":        {token("9223372036854775808", "1", "1"), 1},
		"a token of the most ended leaders": {token("9", "1", "1000"), 0},
		"a token that might be true":        {token("1000000", "1", "0"), 0},
		"a low token":                       {token("1", "1", "0"), 0},
		"a token with words left out":       {amqp.Table{keys.Line: "token"}, 0},
		"a copy of an impossible epoch":     {wait("1", highest+"-7"), 0},
		"huge numbers":                      {wait(huge, huge+"-"+huge), 0},
		"large numbers":                     {wait("7", "9223372036854775807-7"), 0},
		"a time that is far away": {amqp.Table{
			keys.Line: "wait 1 1-1", keys.Key: "a", keys.NotBefore: far,
		}, 0},
		"no header": {nil, 0},
		"headers of other types": {amqp.Table{
			keys.Line: int64(7), keys.Key: []byte("a"), keys.NotBefore: true,
		}, 0},
	} {
		for _, leads := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, a process leads %v", name, leads), func(t *testing.T) {
				t.Parallel()
				rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
					var handled bodies
					// By the first letter: the handlers of a, of b and of the forged x run side by side.
					var last [3]atomic.Uint64
					cfg := inMemory(broker, orderedBy(inorder.Strategy{}, often(time.Second),
						func(msg *message.Message) error {
							epoch := middleware.StateOf(msg.Context()).Epoch
							assert.GreaterOrEqual(t, epoch, last[msg.Payload[0]%3].Swap(epoch))
							return handled.handle(msg)
						}))
					sent, told := 0, 0
					for process := range 4 {
						r := rig.Start(t, cfg)
						send := func() {
							r.Send("a:"+strconv.Itoa(sent), "b:"+strconv.Itoa(sent))
							sent++
							time.Sleep(5 * time.Second)
						}
						forge := func() {
							rig.Publish(t, broker.URL(), "", "orders.line", amqp.Publishing{
								DeliveryMode: amqp.Persistent, Headers: c.headers, Body: []byte("x:0"),
							})
							time.Sleep(5 * time.Second)
						}
						send()
						if process == 1 && leads {
							forge()
							send()
						}
						told += r.Logs.Said("A note in the line is not believed")
						r.Stop()
						if process == 1 && !leads {
							forge()
						}
					}
					require.Equal(t, ofKey("a", sent), handled.of("a"))
					require.Equal(t, ofKey("b", sent), handled.of("b"))
					require.Less(t, max(last[0].Load(), last[1].Load(), last[2].Load()), uint64(1<<21))
					require.Equal(t, c.told, told)
				})
			})
		}
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
			s := rig.Start(t, inMemory(broker, orderedBy(inorder.Strategy{}, often(time.Second),
				func(msg *message.Message) error {
					mu.Lock()
					defer mu.Unlock()
					epoch := middleware.StateOf(msg.Context()).Epoch
					assert.GreaterOrEqual(t, epoch, last, name)
					last, leader = epoch, name
					return nil
				})))
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
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		var handled bodies
		var failed atomic.Bool
		r := rig.Start(t, inMemory(broker, orderedBy(inorder.Strategy{}, often(time.Second),
			func(msg *message.Message) error {
				if string(msg.Payload) == "a:0" && failed.CompareAndSwap(false, true) {
					return errNotYet
				}
				return handled.handle(msg)
			})))
		r.Send("a:0")
		rig.WaitFor(t, "the first message fails", failed.Load)
		later := rig.Message("a:1")
		later.Headers = amqp.Table{
			header.Queue: r.Queue, keys.Snoozed: "5m",
			keys.NotBefore: time.Now().Add(5 * time.Minute).UTC().Format(time.RFC3339Nano),
		}
		r.Publish(later)
		time.Sleep(5*time.Minute - time.Second)
		require.Equal(t, ofKey("a", 1), handled.of("a"))
		time.Sleep(2 * time.Second)
		require.Equal(t, ofKey("a", 2), handled.of("a"))
		r.RequireNothingLeft(0)
	})
}
