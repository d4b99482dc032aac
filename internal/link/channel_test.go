package link_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/memnet"
	"github.com/millpond-go/millpond/internal/testing/peer"
)

// largest is the frame size that the peer negotiates.
const largest = 131072

// watched is a connection whose client must write whole frames that are not too large, and none on
// a channel after its end: RabbitMQ ends the connection otherwise.
type watched struct {
	net.Conn
	t     *testing.T
	rest  []byte
	ended map[uint16]bool
}

func (w *watched) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	for {
		whole, rest, isFrame := frame.Next(w.rest)
		if whole == nil {
			return w.Conn.Write(b)
		}
		w.rest = rest
		if !isFrame {
			continue
		}
		f := frame.Frame(whole)
		assert.LessOrEqual(w.t, len(f), largest)
		switch f.Method() {
		case frame.ChannelOpen:
			delete(w.ended, f.Channel())
		case frame.ChannelClose:
			w.ended[f.Channel()] = true
		case frame.ChannelCloseOk:
			w.ended[f.Channel()] = true
		default:
			assert.False(w.t, w.ended[f.Channel()], "%s on a channel that has ended", f)
		}
	}
}

// onPeer opens a link to a peer in memory.
func onPeer(t *testing.T, script func(*peer.Publish)) (*link.Link, *link.Conn) {
	t.Helper()
	cfg := config(peer.Start(t, script).URL())
	cfg.AMQP = &amqp.Config{
		SASL: []amqp.Authentication{&amqp.PlainAuth{Username: "guest", Password: "guest"}},
		Dial: func(network, addr string) (net.Conn, error) {
			conn, err := memnet.Dial(network, addr)
			return &watched{Conn: conn, t: t, ended: map[uint16]bool{}}, err
		},
	}
	return open(t, cfg)
}

// confirming returns a channel in confirm mode.
func confirming(t *testing.T, conn *link.Conn) *link.Channel {
	t.Helper()
	ch, err := conn.Open()
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	return ch
}

// arrivals are the bodies that have arrived, by the word before their number.
type arrivals struct {
	mu     sync.Mutex
	bodies map[string][]string
}

// accept notes a publish, and does what its body says.
func (a *arrivals) accept(p *peer.Publish) {
	word, rest, _ := strings.Cut(string(p.Body), " ")
	number, _, _ := strings.Cut(rest, " ")
	a.mu.Lock()
	a.bodies[word] = append(a.bodies[word], number)
	a.mu.Unlock()
	switch word {
	case "block":
		p.Blocked(true)
		time.AfterFunc(time.Minute, func() { p.Blocked(false) })
	case "cut":
		p.Cut(true)
		return
	}
	if p.Tag%3 == 0 { // also of the channel of amqp091-go
		p.Ack(p.Tag, true)
	} else if p.Tag%3 == 1 {
		p.Ack(p.Tag, false)
	}
}

// Given many callers on two channels, and others that publish with amqp091-go meanwhile, then each
// message arrives whole, in frames that are not too large, and each caller's in their order. The
// same is true after the broker has blocked the connection, and after a reconnect.
func TestFramesOfManyCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &arrivals{bodies: map[string][]string{}}
		l, conn := onPeer(t, a.accept)
		say := func(ch *link.Channel, body string) *link.Confirm {
			confirm, err := ch.Send("", "missing", false, &amqp.Publishing{Body: []byte(body)})
			require.NoError(t, err)
			return confirm
		}
		const callers, each = 8, 30
		all := func(round string, conn *link.Conn) {
			var publishing sync.WaitGroup
			own := []*link.Channel{confirming(t, conn), confirming(t, conn)}
			other, err := conn.Channel()
			require.NoError(t, err)
			for caller := range callers {
				publishing.Go(func() {
					for i := range each {
						body := fmt.Sprintf("%s-%d %d %s", round, caller, i,
							strings.Repeat("x", (caller*each+i)%7*50_000))
						if caller%4 > 0 {
							say(own[caller%2], body)
							continue
						}
						assert.NoError(t, other.Publish("", "missing", false, false,
							amqp.Publishing{Body: []byte(body)}))
					}
				})
			}
			publishing.Wait()
			for _, ch := range own {
				for i := range 3 { // until the tag is one at which all are acked
					if confirm := say(ch, fmt.Sprint(round, "-end ", i)); i == 2 {
						<-confirm.Done()
						assert.Equal(t, link.Acked, confirm.Answer())
					}
				}
			}
			synctest.Wait()
			a.mu.Lock()
			defer a.mu.Unlock()
			for caller := range callers {
				got := a.bodies[fmt.Sprintf("%s-%d", round, caller)]
				require.Len(t, got, each)
				for i, number := range got {
					require.Equal(t, fmt.Sprint(i), number)
				}
			}
		}
		all("first", conn)

		say(confirming(t, conn), "block")
		synctest.Wait()
		unblocked := conn.Unblocked()
		require.NotNil(t, unblocked)
		<-unblocked
		all("unblocked", conn)

		ch := confirming(t, conn)
		confirm := say(ch, "cut")
		<-confirm.Done()
		assert.Equal(t, link.Lost, confirm.Answer())
		ends(t, conn)
		_, err := ch.Send("", "missing", false, &amqp.Publishing{})
		assert.ErrorIs(t, err, amqp.ErrClosed)
		all("again", live(t, l))
	})
}

// Given callers who publish and ack, when the channel is closed meanwhile, by this side or by the
// broker, then nothing is written on it behind the close, and each publish gets an answer.
func TestNothingIsWrittenBehindAClose(t *testing.T) {
	t.Parallel()
	for _, byBroker := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			_, conn := onPeer(t, func(p *peer.Publish) {
				if byBroker && p.Tag == 20 {
					p.CloseChannel(406, "PRECONDITION_FAILED")
				}
			})
			ch := confirming(t, conn)
			var calling sync.WaitGroup
			for range 8 {
				calling.Go(func() {
					for {
						confirm, err := ch.Send("", "missing", false, &amqp.Publishing{Body: []byte("body")})
						if err != nil {
							assert.ErrorIs(t, err, amqp.ErrClosed)
							return
						}
						_ = ch.Ack(1, true)
						calling.Go(func() {
							<-confirm.Done()
							assert.Equal(t, link.Lost, confirm.Answer())
						})
						time.Sleep(time.Millisecond)
					}
				})
			}
			if !byBroker {
				time.Sleep(10 * time.Millisecond)
				assert.NoError(t, ch.Close())
			}
			calling.Wait()
			works(t, conn)
		})
	}
}

// Given more deliveries than the memory for them, of which none is received, then all of them are
// received later, in their order, and then the end.
func TestDeliveriesThatNobodyReceives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, conn := onPeer(t, nil)
		const n = 3000
		require.NoError(t, conn.Do(t.Context(), func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare("queue", true, false, false, false, nil)
			return err
		}))
		out := confirming(t, conn)
		for i := range n {
			body := binary.BigEndian.AppendUint64(make([]byte, 0, 150_000*(i%500/499)), uint64(i))
			_, err := out.Send("", "queue", true, &amqp.Publishing{
				Body: body[:max(len(body), cap(body))], MessageId: fmt.Sprint(i),
				Headers: amqp.Table{"i": int64(i)},
			})
			require.NoError(t, err)
		}
		in, err := conn.Open()
		require.NoError(t, err)
		deliveries, err := in.Deliveries("queue", "tag", 1<<15, false, false, nil)
		require.NoError(t, err)
		for len(deliveries) < cap(deliveries) {
			time.Sleep(time.Microsecond)
		}
		for i := range n {
			d := <-deliveries
			require.EqualValues(t, i, binary.BigEndian.Uint64(d.Body))
			require.Equal(t, amqp.Table{"i": int64(i)}, d.Headers)
			require.Equal(t, fmt.Sprint(i), d.MessageId)
			require.Equal(t, "queue", d.RoutingKey)
			require.Equal(t, "tag", d.ConsumerTag)
			require.NoError(t, in.Ack(d.DeliveryTag, false))
		}
		require.NoError(t, in.Cancel("tag", false))
		_, open := <-deliveries
		assert.False(t, open)
		assert.NoError(t, in.Close())
	})
}

// Given deliveries that nobody receives, when the channel ends, then they are dropped, because the
// broker has them again.
func TestDeliveriesOfAChannelThatEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, conn := onPeer(t, nil)
		require.NoError(t, conn.Do(t.Context(), func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare("queue", true, false, false, false, nil)
			return err
		}))
		out := confirming(t, conn)
		for range 2000 {
			_, err := out.Send("", "queue", true, &amqp.Publishing{Body: []byte("body")})
			require.NoError(t, err)
		}
		in, err := conn.Open()
		require.NoError(t, err)
		deliveries, err := in.Deliveries("queue", "tag", 1<<15, false, false, nil)
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, in.Close())
		synctest.Wait()
		_, open := <-deliveries
		assert.False(t, open)
	})
}
