// Package experiment is what the tests of a strategy (topologytest) and the examination of a broker
// (doctor) have in common: how an experiment on a broker ends, waits and is reported, and the
// message that must pass a broker unchanged.
package experiment

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Trial is the run of one experiment, which may end itself as Fatal ends a test. It keeps the
// outcome, so that many run at the same time and are reported later.
type Trial struct {
	Name     string
	Patience time.Duration
	// Failed and Skipped are the outcome, Lines say it. Err is the error of Must.
	Failed, Skipped bool
	Lines           []string
	Err             error

	ctx      context.Context
	mu       sync.Mutex
	cleanups []func() error
}

// New returns a Trial. Every wait of it ends with ctx.
func New(ctx context.Context, name string, patience time.Duration) *Trial {
	return &Trial{ctx: ctx, Name: name, Patience: patience}
}

// Run calls f, which may end itself with Fatalf, Skipf or Must.
func (tr *Trial) Run(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// Logf adds a line.
func (tr *Trial) Logf(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.Lines = append(tr.Lines, fmt.Sprintf(format, args...))
}

// Errorf adds a line about a failure.
func (tr *Trial) Errorf(format string, args ...any) {
	tr.Logf(format, args...)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.Failed = true
}

// Fatalf ends the trial with a failure.
func (tr *Trial) Fatalf(format string, args ...any) {
	tr.Errorf(format, args...)
	runtime.Goexit()
}

// Skipf ends the trial without an answer.
func (tr *Trial) Skipf(format string, args ...any) {
	tr.Logf(format, args...)
	tr.mu.Lock()
	tr.Skipped = true
	tr.mu.Unlock()
	runtime.Goexit()
}

// Must ends the trial if there is an error.
func (tr *Trial) Must(err error, doing string, args ...any) {
	if err != nil {
		tr.Err = err
		tr.Fatalf("%s: %v", fmt.Sprintf(doing, args...), err)
	}
}

// Cleanup adds a function that Clean calls, the last one first.
func (tr *Trial) Cleanup(f func() error) { tr.cleanups = append(tr.cleanups, f) }

// Inherit takes over the cleanups of another trial.
func (tr *Trial) Inherit(other *Trial) {
	tr.cleanups, other.cleanups = append(tr.cleanups, other.cleanups...), nil
}

// Clean calls the cleanups.
func (tr *Trial) Clean() {
	for _, f := range slices.Backward(tr.cleanups) {
		if err := f(); err != nil {
			tr.Errorf("cannot clean up: %v", err)
		}
	}
	tr.cleanups = nil
}

// look is the time between two looks of Until.
const look = 10 * time.Millisecond

// Until waits until a condition holds, for limit at most, and reports whether it does.
func (tr *Trial) Until(limit time.Duration, cond func() bool) bool {
	for end := time.Now().Add(limit); ; {
		if cond() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		tr.Pause(look)
	}
}

// Await is Until for the patience beyond due.
func (tr *Trial) Await(due time.Duration, cond func() bool) bool {
	return tr.Until(due+tr.Patience, cond)
}

// Pause waits. It ends the trial with the context.
func (tr *Trial) Pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-tr.ctx.Done():
		tr.Must(context.Cause(tr.ctx), "wait")
	}
}

// Typed returns a message with properties, and with a header of each type that amqp091-go reads and
// writes.
func Typed(id string) amqp.Publishing {
	at := time.Date(2026, 3, 1, 12, 30, 45, 0, time.UTC)
	return amqp.Publishing{
		Headers: amqp.Table{
			"text": "plain", "bytes": []byte{0, 1, 255}, "bool": true, "nil": nil, "time": at,
			"int8": int8(-1), "int16": int16(-3), "int32": int32(-5), "int64": int64(1) << 40,
			"float32": float32(0.5), "float64": 0.25, "decimal": amqp.Decimal{Scale: 2, Value: 1234},
			"table": amqp.Table{"deep": amqp.Table{"n": int64(7)}},
			"array": []any{int64(1), "two", amqp.Table{"c": true}},
		},
		ContentType: "application/json", ContentEncoding: "utf-8", CorrelationId: "corr-1",
		MessageId: id, Priority: 3, Type: "order.created", AppId: "shop", ReplyTo: "answers",
		Timestamp: at, DeliveryMode: amqp.Persistent, Body: []byte("{\"order\":1}\x00\xff"),
	}
}

// Differences names all in which a delivery differs from a message. It may have more headers.
func Differences(sent amqp.Publishing, got amqp.Delivery) (found []string) {
	differs := func(what string, got, want any) {
		if at, isTime := want.(time.Time); isTime {
			if other, same := got.(time.Time); same && other.Equal(at) {
				return
			}
		}
		if !reflect.DeepEqual(got, want) {
			found = append(found, fmt.Sprintf("%s %v (%T) in place of %v (%T)", what, got, got,
				want, want))
		}
	}
	for key, want := range sent.Headers {
		value, there := got.Headers[key]
		if !there {
			found = append(found, "no header "+key)
			continue
		}
		differs("the header "+key, value, want)
	}
	differs("the body", got.Body, sent.Body)
	differs("the content type", got.ContentType, sent.ContentType)
	differs("the content encoding", got.ContentEncoding, sent.ContentEncoding)
	differs("the correlation id", got.CorrelationId, sent.CorrelationId)
	differs("the message id", got.MessageId, sent.MessageId)
	differs("the priority", got.Priority, sent.Priority)
	differs("the type", got.Type, sent.Type)
	differs("the app id", got.AppId, sent.AppId)
	differs("the reply-to", got.ReplyTo, sent.ReplyTo)
	differs("the timestamp", got.Timestamp, sent.Timestamp)
	differs("the delivery mode", got.DeliveryMode, sent.DeliveryMode)
	return found
}
