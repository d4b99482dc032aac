//go:build unix

package testbroker_test

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestPostgresEndsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	p := testbroker.PrivatePostgres(t)
	conn, err := net.DialTimeout("tcp4", p.Address(), 5*time.Second)
	require.NoError(t, err)
	require.NoError(t, conn.Close())

	require.NoError(t, p.Close())
	require.NoError(t, p.Close(), "once more")
	_, err = net.DialTimeout("tcp4", p.Address(), 5*time.Second)
	require.Error(t, err, "the port still answers")
	_, err = os.Stat(testbroker.Folder(p))
	require.ErrorIs(t, err, os.ErrNotExist)
}
