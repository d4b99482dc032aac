package publisher_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/peer"
)

// outcomes of a publish, as a test reads them.
const (
	success  = "success"
	refused  = "refused"
	returned = "returned"
	unknown  = "unknown"
)

// each runs a subtest in virtual time for each case.
func each[C any](t *testing.T, cases map[string]C, f func(*testing.T, C)) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, c) })
		})
	}
}

func outcome(err error) string {
	var r *publisher.ReturnedError
	switch {
	case err == nil:
		return success
	case errors.Is(err, publisher.ErrRefused):
		return refused
	case errors.As(err, &r):
		return returned
	case errors.Is(err, publisher.ErrUnknown):
		return unknown
	default:
		return err.Error()
	}
}

func ack(p *peer.Publish)  { p.Ack(p.Tag, false) }
func nack(p *peer.Publish) { p.Nack(p.Tag, false) }

// A broker answers a publish as no real broker does. Only an ack that covers the publish, with no
// return before it, is success. The next publish is told its own outcome.
func TestOddAnswers(t *testing.T) {
	t.Parallel()
	type answer struct {
		answer func(*peer.Publish)
		want   string
	}
	const failed = "PRECONDITION_FAILED"
	type P = peer.Publish
	cases := map[string]answer{
		"ack":                            {ack, success},
		"ack with multiple":              {func(p *P) { p.Ack(p.Tag, true) }, success},
		"ack of a higher tag and below":  {func(p *P) { p.Ack(p.Tag+98, true) }, success},
		"ack of a tag never sent":        {func(p *P) { p.Ack(p.Tag+98, false) }, unknown},
		"ack of tag 0":                   {func(p *P) { p.Ack(0, false) }, unknown},
		"ack of tag 0 with multiple":     {func(p *P) { p.Ack(0, true) }, unknown},
		"ack of the tag before":          {func(p *P) { p.Ack(p.Tag-1, true) }, unknown},
		"ack on another channel":         {func(p *P) { p.AckOn(p.Channel+7, p.Tag) }, unknown},
		"ack on the connection":          {func(p *P) { p.AckOn(0, p.Tag) }, unknown},
		"ack twice":                      {func(p *P) { ack(p); ack(p) }, success},
		"ack of this and of the next":    {func(p *P) { ack(p); p.Ack(p.Tag+1, false) }, success},
		"nack":                           {nack, refused},
		"nack with multiple":             {func(p *P) { p.Nack(p.Tag, true) }, refused},
		"nack of a tag never sent":       {func(p *P) { p.Nack(p.Tag+98, false) }, unknown},
		"nack, then ack":                 {func(p *P) { nack(p); ack(p) }, refused},
		"ack, then nack":                 {func(p *P) { ack(p); nack(p) }, success},
		"return, then ack":               {func(p *P) { p.Return(); ack(p) }, returned},
		"return, then ack with multiple": {func(p *P) { p.Return(); p.Ack(p.Tag, true) }, returned},
		"return, then nack":              {func(p *P) { p.Return(); nack(p) }, returned},
		"return twice, then ack":         {func(p *P) { p.Return(); p.Return(); ack(p) }, returned},
		"return and nothing else":        {func(p *P) { p.Return() }, unknown},
		"ack, then return":               {func(p *P) { ack(p); p.Return() }, "success or returned"},
		"silence":                        {func(*P) {}, unknown},
		"channel.close":                  {func(p *P) { p.CloseChannel(406, failed) }, unknown},
		"return, then channel.close": {
			func(p *P) { p.Return(); p.CloseChannel(406, failed) }, "returned or unknown",
		},
		"ack, then channel.close": {func(p *P) { ack(p); p.CloseChannel(504, "CHANNEL_ERROR") }, success},
		"connection.close":        {func(p *P) { p.CloseConnection(541, "INTERNAL_ERROR") }, unknown},
		"ack, then connection.close": {
			func(p *P) { ack(p); p.CloseConnection(320, "CONNECTION_FORCED") }, success,
		},
		"half a confirm":            {func(p *P) { p.Half() }, unknown},
		"a confirm without its end": {func(p *P) { p.Garbage() }, unknown},
		"the end of the connection": {func(p *P) { p.Cut(false) }, unknown},
		"a reset":                   {func(p *P) { p.Cut(true) }, unknown},
		"blocked, then ack": {
			func(p *P) { p.Blocked(true); ack(p); p.Blocked(false) }, success,
		},
		"blocked and unblocked, no answer": {func(p *P) { p.Blocked(true); p.Blocked(false) }, unknown},
	}
	each(t, cases, func(t *testing.T, c answer) {
		p, s := onPeer(t, soon, func(p *peer.Publish) {
			switch string(p.Body) {
			case "odd":
				c.answer(p)
			case "unanswered":
			default:
				ack(p)
			}
		})
		p.recovers() // so that only the answer takes time
		within(t, 2*soon, "Publish", func() {
			got := outcome(p.say("odd"))
			assert.Contains(t, c.want, got)
			t.Log(got)
		})
		// It may come too early, before the next channel is open.
		await(t, "the next publish to be sent", func() bool {
			before := s.Published()
			require.Error(t, p.say("unanswered"), "an answer to another publish counted")
			return s.Published() > before
		})
		p.recovers()
	})
}

// Given two publishes in flight, each gets its own outcome in every order of the confirms.
func TestOddOrderOfConfirms(t *testing.T) {
	t.Parallel()
	type answer struct {
		answer func(first, second *peer.Publish)
		want   [2]string // "": a broker's fault that may read either way
	}
	type P = peer.Publish
	cases := map[string]answer{
		"the second first": {func(a, b *P) { ack(b); ack(a) }, [2]string{success, success}},
		"both at once":     {func(_, b *P) { b.Ack(b.Tag, true) }, [2]string{success, success}},
		"the second only":  {func(_, b *P) { ack(b) }, [2]string{unknown, success}},
		"the first only":   {func(a, _ *P) { a.Ack(a.Tag, true) }, [2]string{success, unknown}},
		"nack the second, ack both": {
			func(_, b *P) { nack(b); b.Ack(b.Tag, true) }, [2]string{success, refused},
		},
		"nack both at once": {func(_, b *P) { b.Nack(b.Tag, true) }, [2]string{refused, refused}},
		"the first returned, ack both": {
			func(a, b *P) { a.Return(); b.Ack(b.Tag, true) }, [2]string{returned, success},
		},
		"the second returned, ack both": {
			func(_, b *P) { b.Return(); b.Ack(b.Tag, true) }, [2]string{success, returned},
		},
		"returned and acked crosswise": {
			func(a, b *P) { b.Return(); ack(a); a.Return(); ack(b) }, [2]string{"", returned},
		},
		"the second, then channel.close": {
			func(_, b *P) { ack(b); b.CloseChannel(406, "PRECONDITION_FAILED") },
			[2]string{unknown, success},
		},
	}
	each(t, cases, func(t *testing.T, c answer) {
		arrived := make(chan *peer.Publish, 2)
		p, _ := onPeer(t, soon, func(p *peer.Publish) {
			if string(p.Body) == "again" {
				ack(p)
				return
			}
			arrived <- p
		})
		p.recovers()
		var results [2]chan error
		var publishes [2]*peer.Publish
		for i := range results {
			results[i] = p.begin(1, fmt.Sprint(i))
			select {
			case publishes[i] = <-arrived:
			case <-time.After(patience):
				t.Fatalf("publish %d has not arrived", i)
			}
		}
		c.answer(publishes[0], publishes[1])
		within(t, 2*soon, "the calls", func() {
			for i, result := range results {
				if got := outcome(<-result); c.want[i] != "" {
					assert.Equal(t, c.want[i], got, "publish %d", i+1)
				}
			}
		})
		p.recovers()
	})
}

// Given 5000 callers, when the broker returns every message and acks none until the channel has no
// place left, each caller is told. More returns than the channel has places for would block the
// reader. After five seconds a return would be lost, and look like success.
func TestReturnsOfMoreCallersThanPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const all, places = 5000, 200
		var mu sync.Mutex
		var held []*peer.Publish
		p, s := onPeer(t, long, func(p *peer.Publish) {
			mu.Lock()
			defer mu.Unlock()
			p.Return()
			if held = append(held, p); len(held) < places {
				return
			}
			for _, p := range held {
				ack(p)
			}
			held = held[:0]
		})
		within(t, patience, "the calls", func() {
			for _, c := range callers(all, 1, func(_ int, body string) error { return p.say(body) }) {
				isReturned(t, c.err)
			}
		})
		assert.Equal(t, all, s.Published())
	})
}
