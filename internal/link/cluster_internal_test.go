package link

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClusterAdmitsOneAtATime(t *testing.T) {
	t.Parallel()
	var c Cluster
	require.NoError(t, c.enter(""), "a broker that sends no name")
	require.NoError(t, c.enter("a"))
	require.NoError(t, c.enter("a"))
	require.ErrorIs(t, c.enter("b"), ErrOtherCluster)
	require.NoError(t, c.enter(""))
	for range 4 {
		c.leave()
	}
	require.NoError(t, c.enter("b"), "when no connection is left, another cluster may be the one")
	require.ErrorIs(t, c.enter("a"), ErrOtherCluster)
	var none *Cluster
	require.NoError(t, none.enter("a"))
	require.NoError(t, none.enter("b"))
	none.leave()
}
