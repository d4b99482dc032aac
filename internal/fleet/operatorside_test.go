package fleet_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/fleet"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
)

func TestMain(m *testing.M) {
	testbroker.Main(m, func() error { return goleak.Find() })
}

// noon is the time of a stop.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// brake is a brake with a name that no other test has.
type brake struct {
	t    *testing.T
	name string
	conn *link.Conn
	ch   *amqp.Channel
}

func newBrake(t *testing.T) *brake {
	t.Helper()
	url := testbroker.URL(t)
	l, err := link.Open(t.Context(), link.Config{
		URL: url, Name: "millpond test", ConnectTimeout: 10 * time.Second,
		WriteTimeout: 10 * time.Second, Logger: watermill.NopLogger{},
		Reconnect: link.Backoff{Initial: time.Second, Max: time.Second, Multiplier: 1},
	})
	require.NoError(t, err)
	t.Cleanup(l.Close)
	conn, err := l.Conn(t.Context())
	require.NoError(t, err)
	b := &brake{t: t, name: "brake " + rand.Text(), conn: conn, ch: testbroker.Channel(t, url)}
	testbroker.Delete(t, fleet.Prefix+b.name)
	t.Cleanup(func() {
		_ = testbroker.Channel(t, url).ExchangeDelete(fleet.Prefix+b.name, false, false)
	})
	return b
}

// planned is a stop by an operator.
func (b *brake) planned() header.BrakeState {
	return header.BrakeState{
		Name: b.name, Since: noon, By: "anna", Cause: "the provider moves", Until: noon.Add(time.Hour),
	}
}

func (b *brake) stop(state header.BrakeState) (shared bool) {
	b.t.Helper()
	shared, err := fleet.StopByHand(b.t.Context(), b.conn, state)
	require.NoError(b.t, err)
	return shared
}

func (b *brake) ask() header.BrakeState {
	b.t.Helper()
	state, err := fleet.Ask(b.t.Context(), b.conn, b.name)
	require.NoError(b.t, err)
	return state
}

func (b *brake) start() error { return fleet.StartByHand(b.t.Context(), b.conn, b.name, "anna") }

// publish tells news, or puts a token into the queue.
func (b *brake) publish(exchange, key, kind string, state header.BrakeState) {
	b.t.Helper()
	msg, err := fleet.News(kind, "shop@host/7", state)
	require.NoError(b.t, err)
	err = b.ch.PublishWithContext(context.Background(), exchange, key, false, false, msg)
	require.NoError(b.t, err)
}

// process takes the token and nothing else: a process that hangs.
func (b *brake) process(prefetch int) <-chan amqp.Delivery {
	b.t.Helper()
	require.NoError(b.t, fleet.Declare(b.ch, b.name))
	require.NoError(b.t, b.ch.Qos(prefetch, 0, false))
	tokens, err := b.ch.Consume(fleet.Prefix+b.name, "", false, false, false, false, nil)
	require.NoError(b.t, err)
	return tokens
}

// probe is process, and answers as the process that probes does.
func (b *brake) probe() {
	b.t.Helper()
	tokens := b.process(1)
	queue, err := b.ch.QueueDeclare("", false, true, true, false, nil)
	require.NoError(b.t, err)
	require.NoError(b.t, b.ch.QueueBind(queue.Name, "", fleet.Prefix+b.name, false, nil))
	news, err := b.ch.Consume(queue.Name, "", true, true, false, false, nil)
	require.NoError(b.t, err)
	done := make(chan struct{})
	b.t.Cleanup(func() { _ = b.ch.Close(); <-done })
	go func() {
		defer close(done)
		var token *amqp.Delivery
		var state header.BrakeState
		for {
			select {
			case d, open := <-tokens:
				if !open {
					return
				}
				token = &d
				state, _ = fleet.Read(b.name, d)
				state.Prober = "shop@host/7"
			case d, open := <-news:
				switch {
				case !open:
					return
				case d.Type == fleet.Hello && token != nil:
					b.publish("", d.ReplyTo, fleet.Stopped, state)
				case d.Type == fleet.Start && token != nil:
					_ = token.Ack(false)
					token = nil
					order, _ := fleet.Read(b.name, d)
					b.publish(fleet.Prefix+b.name, "", fleet.Started,
						header.BrakeState{Name: b.name, By: order.By})
				}
			}
		}
	}()
}

// Given no process, when an operator stops a brake and starts it again, then the token is there
// until then, also after looks at it, and the processes that come later stop.
func TestAStopWithoutAProcess(t *testing.T) {
	t.Parallel()
	b := newBrake(t)
	_, err := fleet.Ask(t.Context(), b.conn, b.name)
	require.ErrorIs(t, err, fleet.ErrNoBrake)
	require.ErrorIs(t, b.start(), fleet.ErrNoBrake)

	require.False(t, b.stop(b.planned()))
	want := b.planned()
	want.Stopped, want.Manual = true, true
	for range 3 {
		require.Equal(t, want, b.ask())
	}
	later := b.planned()
	later.Since, later.By = noon.Add(time.Minute), "bert"
	b.stop(later)
	require.Equal(t, "bert", b.ask().By, "of two stops by hand the newer one counts")

	require.NoError(t, b.start())
	require.Equal(t, header.BrakeState{Name: b.name}, b.ask())
	require.ErrorIs(t, b.start(), fleet.ErrOpen)
	require.Zero(t, testbroker.Depth(t, testbroker.URL(t), fleet.Prefix+b.name))
}

// Given a broker that knows the user by another name, as with tokens of OAuth 2, then an operator
// stops and starts a brake all the same.
func TestAnOperatorWithAnotherName(t *testing.T) {
	t.Parallel()
	b := newBrake(t)
	b.probe()
	b.conn.Config.SASL = []amqp.Authentication{&amqp.PlainAuth{Username: "other"}}
	require.True(t, b.stop(b.planned()))
	require.Equal(t, "anna", b.ask().By)
	require.NoError(t, b.start())
	require.False(t, b.ask().Stopped)
}

// Given a process that probes, when an operator asks and starts, then the process answers.
func TestTheProcessThatProbesAnswers(t *testing.T) {
	t.Parallel()
	b := newBrake(t)
	b.probe()
	require.True(t, b.stop(b.planned()), "a process listens")
	var state header.BrakeState
	testbroker.WaitFor(t, "the process to have the token", 10*time.Second, func() bool {
		state = b.ask()
		return state.Prober != ""
	})
	require.Equal(t, "shop@host/7", state.Prober)
	require.Equal(t, "the provider moves", state.Cause)
	require.NoError(t, b.start())
	require.False(t, b.ask().Stopped)
}

// Given a process that has the token and hangs, when an operator starts the brake, then the error
// says which process to restart. A second token that waits shows that the brake is stopped.
func TestAProcessThatHangs(t *testing.T) {
	t.Parallel()
	b := newBrake(t)
	tokens := b.process(1)
	b.stop(b.planned())
	<-tokens
	require.False(t, b.ask().Stopped, "nothing on the broker shows a token that a process has")
	b.stop(b.planned())
	state := b.ask()
	require.Equal(t, header.BrakeState{Name: b.name, Stopped: true}, state)
	err := b.start()
	require.ErrorContains(t, err, "is still stopped")
	require.ErrorContains(t, err, "Restart that process")
}

// Given a stopped brake whose exchange is gone, then its state is known and it can be started.
func TestAnExchangeThatIsGone(t *testing.T) {
	t.Parallel()
	b := newBrake(t)
	b.stop(b.planned())
	require.NoError(t, b.ch.ExchangeDelete(fleet.Prefix+b.name, false, false))
	require.Equal(t, "anna", b.ask().By)
	require.NoError(t, b.start())
	require.False(t, b.ask().Stopped)
}

// A token of another program is no state, and the brake is stopped with it all the same.
func TestATokenThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := newBrake(t)
	require.NoError(t, fleet.Declare(b.ch, b.name))
	require.NoError(t, b.ch.PublishWithContext(t.Context(), "", fleet.Prefix+b.name, false, false,
		amqp.Publishing{Body: []byte("x")}))
	testbroker.WaitFor(t, "the token to be there", 10*time.Second, func() bool {
		return b.ask().Stopped
	})
	require.Equal(t, header.BrakeState{Name: b.name, Stopped: true}, b.ask())
	require.NoError(t, b.start())
	require.False(t, b.ask().Stopped)
}

func TestAStopOfAnotherNameIsRefused(t *testing.T) {
	t.Parallel()
	_, err := fleet.StopByHand(t.Context(), nil, header.BrakeState{Name: "a\nb"})
	require.ErrorIs(t, err, fleet.ErrName)
	_, err = fleet.Ask(t.Context(), nil, "")
	require.ErrorIs(t, err, fleet.ErrName)
	require.ErrorIs(t, fleet.StartByHand(t.Context(), nil, "a\x00", ""), fleet.ErrName)
}

func TestNamesOfBrakes(t *testing.T) {
	t.Parallel()
	for name, problem := range map[string]string{
		"payments":               "",
		"Zahlungen, täglich":     "",
		strings.Repeat("a", 200): "",
		"":                       "it is empty",
		strings.Repeat("a", 201): "it has 201 bytes, 200 are allowed",
		"a\xff":                  "it is not UTF-8",
		"a\nb":                   "U+000A is not printable",
		"a\x1b[2J":               "U+001B is not printable",
	} {
		err := fleet.CheckName(name)
		if problem == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, fleet.ErrName)
		require.ErrorContains(t, err, problem)
	}
}

func TestATokenIsPersistentAndStopped(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	msg, err := fleet.Token("id-1", "shop@host/7", header.BrakeState{Name: "payments", Since: since})
	require.NoError(t, err)
	require.Equal(t, amqp.Publishing{
		ContentType: "application/json", DeliveryMode: amqp.Persistent, MessageId: "id-1",
		Type: "stopped", AppId: "shop@host/7",
		Body: []byte(`{"name":"payments","stopped":true,"since":"2026-03-01T12:00:00Z"}`),
	}, msg)
}

// The name is the one of the exchange that the news came by, because any client can publish there.
func TestRead(t *testing.T) {
	t.Parallel()
	state, ok := fleet.Read("payments", amqp.Delivery{Body: []byte(`{"name":"other","stopped":true}`)})
	require.True(t, ok)
	require.Equal(t, header.BrakeState{Name: "payments", Stopped: true}, state)
	for _, body := range []string{"", "x", `[]`, `{"since":"yesterday"}`} {
		state, ok = fleet.Read("payments", amqp.Delivery{Body: []byte(body)})
		require.False(t, ok, body)
		require.Zero(t, state, body)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"stopped":true,"since":"2026-03-01T12:00:00Z","rate":1.5}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		state, ok := fleet.Read("payments", amqp.Delivery{Body: body})
		if !ok {
			require.Zero(t, state)
			return
		}
		require.Equal(t, "payments", state.Name)
		_, err := json.Marshal(state)
		require.NoError(t, err)
	})
}

func TestMergeOfTwoTokens(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	early := header.BrakeState{By: "early", Since: noon}
	late := header.BrakeState{By: "late", Since: noon.Add(time.Hour)}
	byHand := header.BrakeState{By: "hand", Manual: true, Since: noon.Add(-time.Hour)}
	byHandLate := header.BrakeState{By: "later hand", Manual: true, Since: noon}
	for name, c := range map[string]struct{ a, b, want header.BrakeState }{
		"the newer one":          {early, late, late},
		"by hand before another": {late, byHand, byHand},
		"the newer one by hand":  {byHand, byHandLate, byHandLate},
		"one alone":              {header.BrakeState{}, early, early},
	} {
		require.Equal(t, c.want, fleet.Merge(c.a, c.b), name)
		require.Equal(t, c.want, fleet.Merge(c.b, c.a), name)
	}
}
