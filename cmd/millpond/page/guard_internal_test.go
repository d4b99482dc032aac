package page

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A guess learns nothing without its pause, and keeps nobody waiting when its request has ended.
func TestAPauseEndsWithItsRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const secret = "a long secret"
		g, err := newGuard(Config{Accounts: []Account{{Name: "ada", Secret: secret, Role: RoleRead}}})
		require.NoError(t, err)
		ctx, hangUp := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer hangUp()
		began := time.Now()
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				_, ok := g.check(ctx, "ada", secret)
				require.False(t, ok)
			})
		}
		all.Wait()
		require.Equal(t, 10*time.Millisecond, time.Since(began))
		_, ok := g.check(t.Context(), "ada", secret)
		require.True(t, ok)
		require.Equal(t, 510*time.Millisecond, time.Since(began))
	})
}
