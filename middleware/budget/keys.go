package budget

import (
	"container/list"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/internal/seam"
)

const (
	// longestKeyProbe is how long a probe of a key may take until another message may probe it.
	longestKeyProbe = 30 * time.Second
	// longestYield is how long the probes of other instances may take the place of this one's: any
	// client may publish news of them.
	longestYield = 5 * time.Minute
)

// keys counts the deliveries of each key of a budget by itself.
type keys struct {
	of *Budget

	mu   sync.Mutex
	keys map[string]*list.Element // of order
	// order has the *keyBudget, the last seen first.
	order *list.List
}

// keyBudget is the budget of one key.
type keyBudget struct {
	window
	key       string
	stopped   bool
	failed    int       // probes in a row
	succeeded int       // probes in a row
	next      time.Time // no probe before
	own       time.Time // the last probe of this instance, or the stop
}

func newKeys(of *Budget) *keys {
	k := &keys{of: of, keys: map[string]*list.Element{}, order: list.New()}
	of.brake.OnKey(k.heard)
	return k
}

// Key returns the key of a message. The user's function may panic.
func (p plug) Key(msg *message.Message) (key string) {
	defer func() {
		if recover() != nil {
			key = ""
		}
	}()
	return p.cfg.Key(msg)
}

// get returns the budget of a key, and forgets the oldest one if there are too many. k.mu is held.
func (k *keys) get(key string) *keyBudget {
	if e, ok := k.keys[key]; ok {
		k.order.MoveToFront(e)
		return e.Value.(*keyBudget)
	}
	if k.order.Len() >= k.of.cfg.Keys {
		delete(k.keys, k.order.Remove(k.order.Back()).(*keyBudget).key)
	}
	one := &keyBudget{window: window{cfg: &k.of.cfg}, key: key}
	k.keys[key] = k.order.PushFront(one)
	return one
}

// admit reports whether a delivery goes on to its handler, and whether it is a probe.
func (k *keys) admit(key string) (admitted, probe bool) {
	if key == "" {
		return true, false
	}
	now := k.of.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	e, known := k.keys[key]
	if !known {
		return true, false
	}
	k.order.MoveToFront(e) // a key whose messages are all set aside is seen, too
	one := e.Value.(*keyBudget)
	switch {
	case !one.stopped:
		return true, false
	case now.Before(one.next):
		return false, false
	}
	one.next, one.own = now.Add(longestKeyProbe), now
	k.of.brake.TellKey(seam.KeyNews{Key: key, Kind: seam.KeyProbed})
	return true, true
}

// handled counts a delivery whose handler has returned. While the key is stopped only the result
// of a probe counts.
func (k *keys) handled(key string, failed, probe bool) (c seam.Change) {
	if key == "" {
		return c
	}
	now := k.of.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	one := k.get(key)
	switch {
	case !one.stopped:
		c = one.count(now, func(s *windowSlice) {
			s.deliveries++
			if failed {
				s.failed++
			}
		})
		c.Opened, c.Closed = false, one.failing
		if c.Closed {
			k.stop(one, now)
			k.of.brake.TellKey(seam.KeyNews{Key: key, Kind: seam.KeyStopped})
		}
	case !probe:
	case failed:
		one.failed, one.succeeded = one.failed+1, 0
		one.next = now.Add(k.of.brake.Pause(one.failed))
		k.of.brake.TellKey(seam.KeyNews{Key: key, Kind: seam.KeyFailed})
	default:
		one.failed, one.next = 0, now
		if one.succeeded++; k.of.brake.EnoughSuccesses(one.succeeded) {
			c.Opened = true
			k.start(one)
			k.of.brake.TellKey(seam.KeyNews{Key: key, Kind: seam.KeyStarted})
		}
	}
	return c
}

// undecided notes that a probe of a key has not shown whether its messages can be handled: another
// message may probe soon.
func (k *keys) undecided(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e, known := k.keys[key]; known {
		one := e.Value.(*keyBudget)
		one.next = k.of.now().Add(k.of.brake.Pause(one.failed))
	}
}

// stop and start change a key. k.mu is held.
func (k *keys) stop(one *keyBudget, now time.Time) {
	one.stopped, one.failed, one.succeeded = true, 0, 0
	one.next, one.own = now.Add(k.of.brake.Pause(0)), now
}

func (k *keys) start(one *keyBudget) {
	*one = keyBudget{window: window{cfg: &k.of.cfg}, key: one.key}
}

// isStopped reports whether a key is stopped.
func (k *keys) isStopped(key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, known := k.keys[key]
	return known && e.Value.(*keyBudget).stopped
}

// heard takes the news of another instance, which any client may have published. They make no
// stopped key forgotten, and their probes count until this instance probes with success itself.
func (k *keys) heard(news seam.KeyNews) {
	now := k.of.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	var one *keyBudget
	switch e, known := k.keys[news.Key]; {
	case known:
		one = e.Value.(*keyBudget)
	case news.Kind == seam.KeyStopped && (k.order.Len() < k.of.cfg.Keys ||
		!k.order.Back().Value.(*keyBudget).stopped):
		one = k.get(news.Key)
	default:
		return
	}
	yields := one.stopped && one.succeeded == 0 && now.Sub(one.own) < longestYield
	switch {
	case news.Kind == seam.KeyStopped && !one.stopped:
		k.stop(one, now)
	case news.Kind == seam.KeyProbed && yields:
		one.next = now.Add(longestKeyProbe)
	case news.Kind == seam.KeyFailed && yields:
		one.failed++
		one.next = now.Add(k.of.brake.Pause(one.failed))
	case news.Kind == seam.KeyStarted && one.stopped:
		k.start(one)
	}
}
