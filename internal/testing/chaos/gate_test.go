//go:build unix

package chaos

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGate(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "gate")
	first, err := lockShared(name)
	require.NoError(t, err)
	second, err := lockShared(name)
	require.NoError(t, err, "two at once")

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = lockAlone(ctx, name)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	first()
	second()

	alone, err := lockAlone(t.Context(), name)
	require.NoError(t, err)
	entered := make(chan error, 1)
	go func() {
		open, err := lockShared(name)
		if err == nil {
			open()
		}
		entered <- err
	}()
	select {
	case <-entered:
		t.Error("entered while it was closed")
	case <-time.After(50 * time.Millisecond):
	}
	alone()
	assert.NoError(t, <-entered)
}
