package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
)

// table prints what becomes of the orders.
type table struct {
	mu    sync.Mutex
	out   io.Writer
	calls map[string]int
	last  map[string]time.Time
	ended chan string
}

// handle is the handler: the order's name says what its attempts come to.
func (t *table) handle(msg *message.Message) error {
	name := string(msg.Payload)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.calls == nil {
		t.calls = map[string]int{}
	}
	call := t.calls[name]
	t.calls[name]++
	after := ""
	if last, again := t.last[name]; again {
		after = fmt.Sprintf(" after %v", time.Since(last).Round(10*time.Millisecond))
	}
	attempt := middleware.Attempt(msg.Context())
	if call == len(orders[name]) {
		fmt.Fprintf(t.out, "%-9s attempt %d%s: handled\n", name, attempt, after)
		t.ended <- name
		return nil
	}
	err := orders[name][call]
	fmt.Fprintf(t.out, "%-9s attempt %d%s: %v\n", name, attempt, after, err)
	t.last[name] = time.Now()
	return err
}

func (t *table) dead(_ context.Context, dead middleware.DeadLetter) {
	name := string(dead.Message.Payload)
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, "%-9s dead-lettered: %s\n", name, dead.State.Reason)
	t.ended <- name
}
