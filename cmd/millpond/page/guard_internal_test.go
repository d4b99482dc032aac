package page

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Given guesses whose requests end during the pause, then no secret is compared, and the next login
// waits for its own pause alone.
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

// Given a person whose browser sends name and password in a header, then a guess of that header
// finds no session, neither in a header nor in a cookie, and so waits for the pause.
func TestNoGuessFindsASession(t *testing.T) {
	t.Parallel()
	ada := Account{Name: "ada", Secret: "correct horse", Role: RoleAct}
	g, err := newGuard(Config{Accounts: []Account{ada}})
	require.NoError(t, err)
	request := func(cookie, header string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.AddCookie(&http.Cookie{Name: cookieName(r), Value: cookie})
		r.Header.Set("Authorization", header)
		return r
	}
	const right = "Basic YWRhOmNvcnJlY3QgaG9yc2U="
	r := request("random", right)
	who, ok := g.admits(r)
	require.True(t, ok)
	g.begin(sessionOf(r, "random"), who)
	_, ok = g.who(r)
	require.True(t, ok)
	for cookie, header := range map[string]string{"another": right, right: "", "random": ""} {
		_, ok = g.who(request(cookie, header))
		require.False(t, ok, "%q %q", cookie, header)
	}
	g.finish(r)
	_, ok = g.who(r)
	require.False(t, ok)
}
