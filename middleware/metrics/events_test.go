package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

var (
	errFailed  = errors.New("no stock")
	errInvalid = errors.New("no such customer")
)

const (
	retried = "info: Message will be retried"
	dead    = "error: Message dead-lettered"
	lost    = "error: Handler failed after its message was acked: the message is lost and cannot be " +
		"retried; remove InstantAck, and do not ack in a handler"
	tooBig     = "error: Message cannot be retried, dead-lettering it"
	unreadable = "error: Message cannot be decoded, dead-lettering it"
	holding    = "error: Failed message cannot be handed over, holding it"
	handedOver = "info: Failed message handed over at last"
	suspect    = "info: Processes or connections have ended repeatedly while they had the message, " +
		"snoozing it"
	culprit = "error: The process or its connection ends each time it has the message, " +
		"dead-lettering it"
	late = "info: Handling was interrupted: no attempt is counted"
)

// ways are the fates of messages, with the events and log lines of each. Failing
// tries that follow one another are one event here.
var ways = []struct {
	id, events string
	lines      []string
}{
	{"fine", "handled", nil},
	{"flaky", "retried handled", []string{retried}},
	{"hopeless", "retried retried dead_lettered", []string{retried, retried, dead}},
	{"invalid", "dead_lettered", []string{dead}},
	{"panics", "retried handled", []string{retried}},
	{"later", "snoozed handled", []string{"info: Message snoozed"}},
	{"nacked", "handled snoozed handled", nil},
	{"acked", "self_settled", []string{lost}},
	{"oversized", "dead_lettered", []string{tooBig, dead}},
	{"undecodable", "dead_lettered", []string{unreadable}},
	{"held", "failing recovered retried handled", []string{holding, handedOver, retried}},
	{"suspect", "crash_round handled", []string{suspect}},
	{"culprit", "dead_lettered", []string{culprit}},
	{"late", "requeued", []string{late}}, // at shutdown, therefore the last
}

func TestEveryWayIsToldLoggedAndCounted(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	proxy := testbroker.NewProxy(t, url)

	// Two messages were interrupted five times. One of them was set aside four times
	// before, as a suspect.
	quorum := amqp.Table{"x-queue-type": "quorum"}
	rig.DeclareQueue(t, url, queue, quorum)
	send := func(id string, headers amqp.Table) {
		rig.Publish(t, url, "", queue, amqp.Publishing{
			MessageId: id, CorrelationId: "corr-" + id, Headers: headers, Body: []byte("secret"),
			DeliveryMode: amqp.Persistent,
		})
	}
	send("suspect", nil)
	send("culprit", amqp.Table{header.Queue: queue, keys.Interruptions: "4"})
	for range 5 {
		kill(t, url, queue, 2)
	}

	var told events
	m, registry := newMetrics(t)
	var mu sync.Mutex
	calls := map[string]int{}
	began := make(chan struct{})
	idOf := func(msg *message.Message) (id string, call int) {
		raw, _ := topology.Received(msg.Context())
		mu.Lock()
		defer mu.Unlock()
		return raw.MessageId, calls[raw.MessageId]
	}
	nackOnce := func(h message.HandlerFunc) message.HandlerFunc { // a failure here is a nack
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if id, call := idOf(msg); id == "nacked" && call == 1 {
				return nil, errFailed
			}
			return produced, err
		}
	}
	handle := func(msg *message.Message) error {
		id, _ := idOf(msg)
		mu.Lock()
		calls[id]++
		first := calls[id] == 1
		mu.Unlock()
		switch {
		case id == "hopeless", id == "oversized", id == "flaky" && first:
			return errFailed
		case id == "invalid":
			return fmt.Errorf("order 7: %w", errInvalid)
		case id == "panics" && first:
			panic(errFailed)
		case id == "later" && first:
			return middleware.Snooze(errFailed, time.Second)
		case id == "acked":
			msg.Ack()
			return errFailed
		case id == "held" && first:
			proxy.Blackhole(true)
			return errFailed
		case id == "late":
			close(began)
			<-msg.Context().Done()
			return msg.Context().Err()
		}
		return nil
	}
	s := rig.Start(t, rig.Config{
		URL: url, PublisherURL: proxy.URL(), Queue: queue,
		Policy: backoff.List{100 * time.Millisecond, 300 * time.Millisecond},
		Configure: func(cfg *wamqp.Config) {
			cfg.Queue.Arguments, cfg.Marshaler = quorum, picky{}
		},
		ClientOptions: []topology.Option{
			topology.WithObserver(&told, m), topology.WithConfirmTimeout(2 * time.Second),
		},
		SubscriberOptions: []topology.SubscriberOption{
			topology.WithDrainTimeout(100 * time.Millisecond),
		},
		RetryOptions: []middleware.Option{
			middleware.WithObserver(&told, m),
			middleware.WithClassifier(middleware.PermanentErrors(errInvalid)),
		},
		Outer: []message.HandlerMiddleware{nackOnce}, Handle: handle,
	})

	for _, way := range ways {
		switch way.id {
		case "suspect", "culprit":
		case "oversized":
			send(way.id, amqp.Table{"big": strings.Repeat("x", 126_950)})
		default:
			send(way.id, nil)
		}
		switch way.id {
		case "held":
			rig.WaitFor(t, "the message is held", func() bool { return len(told.about("held")) > 0 })
			require.Equal(t, 1.0, value(t, registry, `held_messages{queue="Q"}`, queue))
			proxy.Blackhole(false)
		case "late":
			<-began
			s.Stop()
		}
		want := strings.Fields(way.events)
		var got []string
		rig.WaitFor(t, "the events of "+way.id, func() bool {
			got = nil
			for _, e := range told.about(way.id) {
				kind := string(e.Kind)
				if e.Kind != middleware.EventFailing || len(got) == 0 || got[len(got)-1] != kind {
					got = append(got, kind)
				}
			}
			return len(got) >= len(want) && got[len(got)-1] == want[len(want)-1]
		})
		require.Equal(t, want, got, way.id)

		var lines []string
		for _, line := range s.Logs.Saying("message_id:" + way.id + " ") {
			level, text, _ := strings.Cut(line, " ")
			text, _, _ = strings.Cut(text, " err=")
			lines = append(lines, level+": "+text)
			require.NotContains(t, line, "secret", "no payload is logged")
		}
		for _, entry := range s.Logs.About(way.id) {
			require.Equal(t, "corr-"+way.id, entry.Fields["correlation_id"], entry)
			require.Equal(t, queue, entry.Fields["queue"], entry)
		}
		require.Equal(t, way.lines, lines, way.id)
	}
	for _, way := range ways { // nothing came late
		for _, e := range told.about(way.id) {
			require.Equal(t, queue, e.Queue, e)
			require.Equal(t, queue, e.Topic, e)
			require.Equal(t, "corr-"+way.id, e.CorrelationID, e)
		}
	}
	requireDelays(t, told.about("hopeless"))

	// With these the retries per queue, the rate of dead letters, the latency and the
	// failure rate per consumer are known.
	for sample, want := range map[string]float64{
		// fine flaky panics later nacked×2 held suspect
		`processing_seconds_count{handler="handler",outcome="success",queue="Q"}`: 8,
		// flaky hopeless×3 invalid panics acked oversized held
		`processing_seconds_count{handler="handler",outcome="failure",queue="Q"}`:     9,
		`processing_seconds_count{handler="handler",outcome="snoozed",queue="Q"}`:     1,
		`processing_seconds_count{handler="handler",outcome="interrupted",queue="Q"}`: 1,
		`failures_total{class="permanent",handler="handler",queue="Q"}`:               1,
		// flaky hopeless panics held
		`retries_total{attempt="1",handler="handler",queue="Q"}`:                4,
		`retries_total{attempt="2",handler="handler",queue="Q"}`:                1,
		`retry_delay_asked_seconds_count{handler="handler",queue="Q"}`:          5,
		`retries_by_delay_total{queue="Q",retry_delay="100ms",retry_level="1"}`: 4,
		`retries_by_delay_total{queue="Q",retry_delay="300ms",retry_level="2"}`: 1,
		`dead_letters_total{handler="handler",queue="Q",reason="exhausted"}`:    1,
		`dead_letters_total{handler="handler",queue="Q",reason="permanent"}`:    1,
		`dead_letters_total{handler="handler",queue="Q",reason="oversized"}`:    1,
		`dead_letters_total{handler="handler",queue="Q",reason="max_age"}`:      0,
		`dead_letters_total{handler="",queue="Q",reason="undecodable"}`:         1,
		`dead_letters_total{handler="",queue="Q",reason="crash_loop"}`:          1,
		`set_aside_total{handler="handler",queue="Q"}`:                          2, // later nacked
		`requeued_total{handler="handler",queue="Q"}`:                           1,
		`crash_rounds_total{queue="Q"}`:                                         1,
		`still_total{queue="Q"}`:                                                0,
		`held_messages{queue="Q"}`:                                              0,
		`attempts_count{handler="handler",queue="Q"}`:                           8,
		// flaky panics held took two attempts
		`attempts_sum{handler="handler",queue="Q"}`:                     8 + 3,
		`time_until_success_seconds_count{handler="handler",queue="Q"}`: 3,
		// flaky hopeless×2 panics later nacked held suspect
		`retry_lateness_seconds_count{queue="Q"}`: 8,
	} {
		require.Equal(t, want, value(t, registry, sample, queue), sample)
	}
	require.Positive(t, value(t, registry, `hand_over_failures_total{queue="Q"}`, queue))
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// requireDelays checks the delays asked, given and measured on a busy machine.
func requireDelays(t *testing.T, e []middleware.Event) {
	t.Helper()
	require.Equal(t, 100*time.Millisecond, e[0].DelayAsked)
	require.Equal(t, 100*time.Millisecond, e[0].DelayGiven)
	require.Zero(t, e[0].DelayMeasured)
	for i, asked := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond} {
		require.Equal(t, asked, e[i+1].LastDelay)
		require.GreaterOrEqual(t, e[i+1].DelayMeasured, asked-5*time.Millisecond)
		require.Less(t, e[i+1].DelayMeasured, asked+10*time.Second)
	}
	require.GreaterOrEqual(t, e[2].Age, 390*time.Millisecond)
	require.Equal(t, header.ReasonExhausted, e[2].Reason)
}

// value returns a sample; Q in its name means the queue. It fails the test without such a sample.
func value(t *testing.T, gatherer prometheus.Gatherer, sample, queue string) float64 {
	t.Helper()
	sample = "millpond_" + strings.ReplaceAll(sample, `"Q"`, fmt.Sprintf("%q", queue))
	all := samples(t, gatherer)
	got, ok := all[sample]
	require.True(t, ok, "no sample %s in %v", sample, all)
	return got
}

// samples returns all samples by their names in the text format.
func samples(t *testing.T, gatherer prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := gatherer.Gather()
	require.NoError(t, err)
	all := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, l := range metric.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			suffix := ""
			if len(labels) > 0 {
				suffix = "{" + strings.Join(labels, ",") + "}"
			}
			switch {
			case metric.Histogram != nil:
				all[family.GetName()+"_count"+suffix] = float64(metric.Histogram.GetSampleCount())
				all[family.GetName()+"_sum"+suffix] = metric.Histogram.GetSampleSum()
			case metric.Counter != nil:
				all[family.GetName()+suffix] = metric.Counter.GetValue()
			default:
				all[family.GetName()+suffix] = metric.Gauge.GetValue()
			}
		}
	}
	return all
}

// events keeps the events of an observer, by message id.
type events struct {
	mu   sync.Mutex
	byID map[string][]middleware.Event
}

func (o *events) Observe(_ context.Context, e middleware.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID == nil {
		o.byID = map[string][]middleware.Event{}
	}
	o.byID[e.MessageID] = append(o.byID[e.MessageID], e)
}

func (o *events) about(id string) []middleware.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.byID[id])
}

// kill takes the messages of a queue and loses the connection, as a process does
// that dies while it handles them.
func kill(t *testing.T, url, queue string, messages int) {
	t.Helper()
	conn, err := amqp.Dial(url)
	require.NoError(t, err)
	defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
	ch, err := conn.Channel()
	require.NoError(t, err)
	for range messages {
		rig.WaitFor(t, "a message in "+queue, func() bool {
			_, ok, err := ch.Get(queue, false)
			require.NoError(t, err)
			return ok
		})
	}
}

// picky refuses messages by their id.
type picky struct{ wamqp.DefaultMarshaler }

func (m picky) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	if d.MessageId == "undecodable" {
		return nil, errors.New("not for me")
	}
	return m.DefaultMarshaler.Unmarshal(d)
}

func TestMain(m *testing.M) { testbroker.Main(m, func() error { return goleak.Find() }) }
