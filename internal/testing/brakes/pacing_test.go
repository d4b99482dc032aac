package brakes_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Given a brake that has started again, when a backlog is handled, then its rate is limited; when
// the queue was empty for a while, then it is not.
func TestThePaceEndsWithTheBacklog(t *testing.T) {
	t.Parallel()
	f := newFleet(t, plan{})
	f.add()
	f.send(20) // within a second, so the rate is 20 a second at most
	f.awaitHandled()
	f.setOut(true)
	f.send(100)
	f.awaitStopped(true)
	f.setOut(false)
	f.awaitStopped(false)
	begin := time.Now()
	f.awaitHandled()
	require.Greater(t, time.Since(begin), 3*time.Second, "100 messages at 25 a second at most")

	for range 80 { // the pace waits for each
		f.send(1)
		time.Sleep(100 * time.Millisecond)
	}
	f.awaitHandled()
	begin = time.Now()
	f.send(500)
	f.awaitHandled()
	require.Less(t, time.Since(begin), 20*time.Second, "500 messages at 25 a second at most")
}
