//go:build unix

package e2e_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// endDeadLettering ends the workers until their supervisor gives up, as it does when queues are
// deleted while their workers start (F47).
const endDeadLettering = `
	End = fun F() -> case whereis(rabbit_fifo_dlx_sup) of
		undefined -> ended;
		_ ->
			try [exit(P, kill) || {_, P, _, _} <- supervisor:which_children(rabbit_fifo_dlx_sup),
				is_pid(P)] catch exit:_ -> ok end,
			F()
	end end,
	End().`

// Given a node whose dead-lettering has ended, then messages whose wait ends stay, and come back
// when the node has been started again (F47).
func TestMessagesSurviveTheEndOfDeadLettering(t *testing.T) {
	t.Parallel()
	const waiting = 20
	node, queue := testbroker.Private(t), testbroker.Queue(t)
	rig.Provision(t, node.URL(), topology.PerQueue{}, queue, backoff.List{blockedDelay})
	rig.Fill(t, node.URL(), queue+".wait.10s", waiting)
	begun := time.Now()
	assert.Equal(t, "ended", strings.TrimSpace(node.Ctl(t, "eval", endDeadLettering)))
	require.Less(t, time.Since(begun), blockedDelay, "dead-lettering ended while the messages waited")
	time.Sleep(time.Until(begun.Add(blockedDelay + 3*time.Second))) // nothing tells that nothing comes
	require.Zero(t, testbroker.Depth(t, node.URL(), queue))

	node.Stop(t)
	node.Start(t)
	assert.Equal(t, waiting, distinct(t, node.URL(), queue, waiting))
}
