package publisher_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// outcomes of a publish, as a test reads them.
const (
	success  = "success"
	refused  = "refused"
	returned = "returned"
	unknown  = "unknown"
)

// oddTimeout ends a publish that is not answered.
const oddTimeout = 2 * time.Second

// atOnce runs a subtest for each case, all together: they mostly wait.
func atOnce[C any](t *testing.T, cases map[string]C, f func(*testing.T, C)) {
	t.Helper()
	var wait sync.WaitGroup
	for name, c := range cases {
		wait.Go(func() { t.Run(name, func(t *testing.T) { f(t, c) }) })
	}
	wait.Wait()
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

// What no real broker can be made to answer. Only an ack that covers the
// publish, with no return before it, is success; and whatever was answered, the
// next publish is told its own outcome.
func TestOddAnswers(t *testing.T) {
	t.Parallel()
	ack := func(p *peer.Publish) { p.Ack(p.Tag, false) }
	type answer struct {
		answer func(*peer.Publish)
		want   []string
	}
	cases := map[string]answer{
		"ack":                              {ack, []string{success}},
		"ack with multiple":                {func(p *peer.Publish) { p.Ack(p.Tag, true) }, []string{success}},
		"ack of a higher tag and below":    {func(p *peer.Publish) { p.Ack(p.Tag+98, true) }, []string{success}},
		"ack of a tag never sent":          {func(p *peer.Publish) { p.Ack(p.Tag+98, false) }, []string{unknown}},
		"ack of tag 0":                     {func(p *peer.Publish) { p.Ack(0, false) }, []string{unknown}},
		"ack of tag 0 with multiple":       {func(p *peer.Publish) { p.Ack(0, true) }, []string{unknown}},
		"ack of the tag before":            {func(p *peer.Publish) { p.Ack(p.Tag-1, true) }, []string{unknown}},
		"ack on another channel":           {func(p *peer.Publish) { p.AckOn(p.Channel+7, p.Tag) }, []string{unknown}},
		"ack on the connection":            {func(p *peer.Publish) { p.AckOn(0, p.Tag) }, []string{unknown}},
		"ack twice":                        {func(p *peer.Publish) { ack(p); ack(p) }, []string{success}},
		"ack of this and of the next":      {func(p *peer.Publish) { ack(p); p.Ack(p.Tag+1, false) }, []string{success}},
		"nack":                             {func(p *peer.Publish) { p.Nack(p.Tag, false) }, []string{refused}},
		"nack with multiple":               {func(p *peer.Publish) { p.Nack(p.Tag, true) }, []string{refused}},
		"nack of a tag never sent":         {func(p *peer.Publish) { p.Nack(p.Tag+98, false) }, []string{unknown}},
		"nack, then ack":                   {func(p *peer.Publish) { p.Nack(p.Tag, false); ack(p) }, []string{refused}},
		"ack, then nack":                   {func(p *peer.Publish) { ack(p); p.Nack(p.Tag, false) }, []string{success}},
		"return, then ack":                 {func(p *peer.Publish) { p.Return(); ack(p) }, []string{returned}},
		"return, then ack with multiple":   {func(p *peer.Publish) { p.Return(); p.Ack(p.Tag, true) }, []string{returned}},
		"return, then nack":                {func(p *peer.Publish) { p.Return(); p.Nack(p.Tag, false) }, []string{returned}},
		"return twice, then ack":           {func(p *peer.Publish) { p.Return(); p.Return(); ack(p) }, []string{returned}},
		"return and nothing else":          {func(p *peer.Publish) { p.Return() }, []string{unknown}},
		"ack, then return":                 {func(p *peer.Publish) { ack(p); p.Return() }, []string{success, returned}},
		"silence":                          {func(*peer.Publish) {}, []string{unknown}},
		"channel.close":                    {func(p *peer.Publish) { p.CloseChannel(406, "PRECONDITION_FAILED") }, []string{unknown}},
		"return, then channel.close":       {func(p *peer.Publish) { p.Return(); p.CloseChannel(406, "PRECONDITION_FAILED") }, []string{returned, unknown}},
		"ack, then channel.close":          {func(p *peer.Publish) { ack(p); p.CloseChannel(504, "CHANNEL_ERROR") }, []string{success}},
		"connection.close":                 {func(p *peer.Publish) { p.CloseConnection(541, "INTERNAL_ERROR") }, []string{unknown}},
		"ack, then connection.close":       {func(p *peer.Publish) { ack(p); p.CloseConnection(320, "CONNECTION_FORCED") }, []string{success}},
		"half a confirm":                   {func(p *peer.Publish) { p.Half() }, []string{unknown}},
		"a confirm without its end":        {func(p *peer.Publish) { p.Garbage() }, []string{unknown}},
		"the end of the connection":        {func(p *peer.Publish) { p.Cut(false) }, []string{unknown}},
		"a reset":                          {func(p *peer.Publish) { p.Cut(true) }, []string{unknown}},
		"blocked, then ack":                {func(p *peer.Publish) { p.Blocked(true); ack(p); p.Blocked(false) }, []string{success}},
		"blocked and unblocked, no answer": {func(p *peer.Publish) { p.Blocked(true); p.Blocked(false) }, []string{unknown}},
	}
	atOnce(t, cases, func(t *testing.T, c answer) {
		s := peer.Start(t, func(p *peer.Publish) {
			switch string(p.Body) {
			case "odd":
				c.answer(p)
			case "unanswered":
			default:
				ack(p)
			}
		})
		p := open(t, s.URL(), oddTimeout)
		p.recovers(t, "any") // so that only the answer takes time
		within(t, 2*oddTimeout, "Publish", func() {
			got := outcome(p.say(t.Context(), "any", "odd"))
			assert.Contains(t, c.want, got)
			t.Log(got)
		})
		// It may come too early for the next channel to be open.
		testbroker.WaitFor(t, "the next publish to be sent", patience, func() bool {
			before := s.Published()
			err := p.say(t.Context(), "any", "unanswered")
			require.Error(t, err, "an answer to another publish counted")
			return s.Published() > before
		})
		p.recovers(t, "any")
	})
}

// Confirms of two publishes under way, in every order.
func TestOddOrderOfConfirms(t *testing.T) {
	t.Parallel()
	type answer struct {
		answer func(first, second *peer.Publish)
		want   [2]string
	}
	cases := map[string]answer{
		"the second first":             {func(a, b *peer.Publish) { b.Ack(b.Tag, false); a.Ack(a.Tag, false) }, [2]string{success, success}},
		"both at once":                 {func(_, b *peer.Publish) { b.Ack(b.Tag, true) }, [2]string{success, success}},
		"the second only":              {func(_, b *peer.Publish) { b.Ack(b.Tag, false) }, [2]string{unknown, success}},
		"the first only":               {func(a, _ *peer.Publish) { a.Ack(a.Tag, true) }, [2]string{success, unknown}},
		"nack the second, ack both":    {func(_, b *peer.Publish) { b.Nack(b.Tag, false); b.Ack(b.Tag, true) }, [2]string{success, refused}},
		"nack both at once":            {func(_, b *peer.Publish) { b.Nack(b.Tag, true) }, [2]string{refused, refused}},
		"the first returned, ack both": {func(a, b *peer.Publish) { a.Return(); b.Ack(b.Tag, true) }, [2]string{returned, success}},
		"the second returned, ack both": {
			func(_, b *peer.Publish) { b.Return(); b.Ack(b.Tag, true) }, [2]string{success, returned},
		},
		"returned and acked crosswise": {
			func(a, b *peer.Publish) { b.Return(); a.Ack(a.Tag, false); a.Return(); b.Ack(b.Tag, false) }, [2]string{"", returned},
		},
		"the second, then channel.close": {
			func(_, b *peer.Publish) { b.Ack(b.Tag, false); b.CloseChannel(406, "PRECONDITION_FAILED") }, [2]string{unknown, success},
		},
	}
	atOnce(t, cases, func(t *testing.T, c answer) {
		arrived := make(chan *peer.Publish, 2)
		s := peer.Start(t, func(p *peer.Publish) {
			if string(p.Body) == "again" {
				p.Ack(p.Tag, false)
				return
			}
			arrived <- p
		})
		p := open(t, s.URL(), oddTimeout)
		p.recovers(t, "any")
		results := [2]chan error{make(chan error, 1), make(chan error, 1)}
		var publishes [2]*peer.Publish
		for i := range results {
			go func() { results[i] <- p.say(t.Context(), "any", fmt.Sprint(i)) }()
			select {
			case publishes[i] = <-arrived:
			case <-time.After(patience):
				t.Fatalf("publish %d has not arrived", i)
			}
		}
		c.answer(publishes[0], publishes[1])
		within(t, 2*oddTimeout, "the calls", func() {
			for i, result := range results {
				if got := outcome(<-result); c.want[i] != "" { // else a broker's fault that may read either way
					assert.Equal(t, c.want[i], got, "publish %d", i+1)
				}
			}
		})
		p.recovers(t, "any")
	})
}
