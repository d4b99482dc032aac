package topology_test

import (
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"fmt"

	"github.com/ThreeDotsLabs/watermill"
)

// ledger is what became of many messages.
type ledger struct {
	mu      sync.Mutex
	handled map[string]int
	failed  map[string]bool
	refused int
}

func newLedger() *ledger {
	return &ledger{handled: map[string]int{}, failed: map[string]bool{}}
}

func (l *ledger) handle(body string) { l.mu.Lock(); defer l.mu.Unlock(); l.handled[body]++ }
func (l *ledger) refuse()            { l.mu.Lock(); defer l.mu.Unlock(); l.refused++ }
func (l *ledger) count() int         { l.mu.Lock(); defer l.mu.Unlock(); return len(l.handled) }
func (l *ledger) undecodable() int   { l.mu.Lock(); defer l.mu.Unlock(); return l.refused }

// failOnce reports whether this is the first time for body.
func (l *ledger) failOnce(body string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := !l.failed[body]
	l.failed[body] = true
	return first
}

func notifyTerm(c chan<- os.Signal) { signal.Notify(c, syscall.SIGTERM) }

// oldLogger tells its parent of messages that watermill-amqp cannot decode.
type oldLogger struct{ watermill.NopLogger }

func (oldLogger) Error(msg string, err error, _ watermill.LogFields) {
	if err != nil && strings.Contains(err.Error(), "is not a string") {
		fmt.Println("undecodable", msg, err)
	}
}

func (l oldLogger) With(watermill.LogFields) watermill.LoggerAdapter { return l }
