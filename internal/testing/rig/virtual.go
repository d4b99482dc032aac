package rig

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millpond-go/millpond/internal/testing/peer"
)

// Virtually runs f in virtual time (testing/synctest) with a peer in the broker's place. The peer
// has queues and the wait queues of topology.PerQueue.
func Virtually(t *testing.T, f func(t *testing.T, s *peer.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, peer.Start(t, WaitQueues)) })
}

// WaitQueues is the script of a peer that accepts every publish. A message in a wait queue goes to
// the queue whose name comes first in the name of the wait queue, after the delay that comes last.
func WaitQueues(p *peer.Publish) {
	p.Accept()
	queue, name, waits := strings.Cut(p.RoutingKey, ".wait.")
	delay, err := time.ParseDuration(strings.TrimSuffix(name, ".classic"))
	if waits && err == nil {
		time.AfterFunc(delay, func() { p.Move(queue) })
	}
}
