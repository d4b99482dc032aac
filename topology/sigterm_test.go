package topology_test

import (
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
)

// closeLimit is how long a service may take to end, on a busy machine: its drain
// or the confirm timeout, and the goodbyes.
const closeLimit = 25 * time.Second

// sigterm is a service that is told to end while it is at something.
type sigterm struct {
	body string
	env  []string
	// at is the frame before which the connection it publishes on is frozen.
	at func(testbroker.Seen) bool
	// unreachable: there is no connection to publish on when the handler fails.
	unreachable bool
	// before waits for the moment of the signal, after for what comes behind it.
	before, after func(s *service, sub, pub *testbroker.Proxy)
	// Afterwards: in the queue, and waiting.
	queued, waiting int
}

func isHeader(seen testbroker.Seen) bool  { return seen.Up && seen.Kind() == frame.KindHeader }
func isConfirm(seen testbroker.Seen) bool { return !seen.Up && seen.Method() == frame.BasicAck }

func thawPublisher(_ *service, _, pub *testbroker.Proxy) { pub.Freeze(false) }

// away is a broker that cannot be reached any more.
func away(p *testbroker.Proxy) {
	p.Refuse(true)
	p.Cut()
}

var sigterms = map[string]sigterm{
	"handling, which ends in time": {
		body:  "slow",
		after: func(s *service, _, _ *testbroker.Proxy) { s.await("handled slow") },
	},
	"handling, longer than the drain": {
		body: "stuck", env: []string{serviceDrain + "=500ms"},
		after:  func(s *service, _, _ *testbroker.Proxy) { s.await("interrupted stuck") },
		queued: 1,
	},
	"handling, longer than the router waits": {
		body: "slow", env: []string{serviceClose + "=200ms"},
		after: func(s *service, _, _ *testbroker.Proxy) { s.await("handled slow") },
	},
	"handling, longer than router and drain": {
		body: "stuck", env: []string{serviceClose + "=200ms", serviceDrain + "=1s"},
		after:  func(s *service, _, _ *testbroker.Proxy) { s.await("interrupted stuck") },
		queued: 1,
	},
	"handling, while nothing answers": {
		body: "slow", env: []string{serviceDrain + "=5s"},
		before: func(_ *service, sub, pub *testbroker.Proxy) { sub.Blackhole(true); pub.Blackhole(true) },
		after:  func(s *service, _, _ *testbroker.Proxy) { s.await("handled slow") },
		queued: 1, // its ack did not arrive
	},
	"republishing": {
		body: "fail", at: isHeader, after: thawPublisher, waiting: 1,
	},
	"waiting for the confirm, which comes": {
		body: "fail", at: isConfirm, after: thawPublisher, waiting: 1,
	},
	"waiting for the confirm, which does not come": {
		body: "fail", at: isConfirm, env: []string{serviceConfirm + "=1s"}, queued: 1, waiting: 1,
	},
	"holding, as there is no connection to publish on": {
		body: "fail", env: []string{serviceConfirm + "=1s"}, unreachable: true,
		before: func(s *service, _, _ *testbroker.Proxy) { s.await("holding") },
		queued: 1,
	},
	"holding, and then the broker is away": {
		body: "fail", env: []string{serviceConfirm + "=1s"}, unreachable: true,
		before: func(s *service, sub, _ *testbroker.Proxy) { s.await("holding"); away(sub) },
		queued: 1,
	},
	"Run's context is cancelled while handling": {
		body: "slow", env: []string{serviceCancels + "=1"},
		after: func(s *service, _, _ *testbroker.Proxy) { s.await("handled slow") },
	},
	"Run's context is cancelled while waiting for the confirm": {
		body: "fail", env: []string{serviceCancels + "=1"}, at: isConfirm, after: thawPublisher, waiting: 1,
	},
}

// SIGTERM at every step: nothing is lost, no attempt burned, no goroutine and no
// connection left, and the end comes in time.
func TestSIGTERMAtEveryStep(t *testing.T) {
	if isService(t) {
		return
	}
	t.Parallel()
	url := testbroker.URL(t)
	slots := make(chan struct{}, 6) // processes at once
	var all sync.WaitGroup
	for name, c := range sigterms {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			t.Run(name, func(t *testing.T) { c.run(t, url) })
		})
	}
	all.Wait()
}

func (c sigterm) run(t *testing.T, url string) {
	queue := testbroker.Queue(t)
	sub, pub := testbroker.NewProxy(t, url), testbroker.NewProxy(t, url)
	frozen := make(chan struct{})
	if c.at != nil {
		var once sync.Once
		pub.Tap(func(seen testbroker.Seen) (f testbroker.Fault) {
			if c.at(seen) {
				once.Do(func() { f.Kind = testbroker.Frozen; close(frozen) })
			}
			return f
		})
	} else {
		close(frozen)
	}
	s := startService(t, "TestSIGTERMAtEveryStep", sub.URL(), queue, append(c.env, servicePublisher+"="+pub.URL())...)
	if c.unreachable {
		away(pub)
	}
	rig.Publish(t, url, "", queue, rig.Message(c.body))
	s.await("handling " + c.body)
	rig.Publish(t, url, "", queue, rig.Message("behind it"))
	select {
	case <-frozen:
	case <-time.After(rig.Patience):
		t.Fatal("the frame to freeze at did not come")
	}
	if c.before != nil {
		c.before(s, sub, pub)
	}
	begun := time.Now()
	s.terminate()
	if c.after != nil {
		c.after(s, sub, pub)
	}
	s.end()
	require.Less(t, time.Since(begun), closeLimit)
	for _, p := range []*testbroker.Proxy{sub, pub} {
		p.Freeze(false)
		p.Blackhole(false)
		rig.WaitFor(t, "the end of the service's connections", func() bool { return p.Live() == 0 })
	}

	found := map[string]int{}
	for range c.queued + 1 { // and the one behind it, which nobody was given
		msg := rig.Take(t, url, queue)
		found[string(msg.Body)]++
		require.NotContains(t, msg.Headers, header.Failures, "an attempt was burned")
	}
	require.Equal(t, 1, found["behind it"], "%v", found)
	require.Equal(t, c.queued, found[c.body], "%v", found)
	require.Zero(t, testbroker.Depth(t, url, queue))
	require.Equal(t, c.waiting, testbroker.Depth(t, url, queue+".wait.1h"), "waiting")
	for range c.waiting {
		require.Equal(t, "1", rig.Take(t, url, queue+".wait.1h").Headers[header.Failures])
	}
	require.Zero(t, testbroker.Depth(t, url, queue+".dlq"))
}
