package page

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Given a form that changes queues, then only an account that may act reaches it, only where
// actions are allowed, and never without the token of the form.
func TestOnlyRoleActActs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		role    Role
		allowed bool
		token   bool
		want    int
	}{
		{RoleAct, true, true, http.StatusNoContent},
		{RoleAct, true, false, http.StatusForbidden},
		{RoleAct, false, true, http.StatusForbidden},
		{RoleRead, true, true, http.StatusForbidden},
		{RoleRead, false, true, http.StatusForbidden},
		{"", true, true, http.StatusForbidden},
	} {
		h, err := New(Config{URL: "amqp://user:password@127.0.0.1:1/", AllowActions: c.allowed})
		require.NoError(t, err)
		defer h.Close()
		who, form := identity{"ada", c.role}, url.Values{}
		if c.token {
			form.Set("form", h.formToken("cookie", who))
		}
		r := httptest.NewRequest(http.MethodPost, "/act", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.AddCookie(&http.Cookie{Name: cookieName(r), Value: "cookie"})
		r = r.WithContext(context.WithValue(r.Context(), visitKey{}, visit{who: who, cookie: "cookie"}))
		w := httptest.NewRecorder()
		h.handlerOf(route{
			pattern: "POST /act", role: RoleAct, serve: func(w http.ResponseWriter, _ *http.Request) error {
				w.WriteHeader(http.StatusNoContent)
				return nil
			},
		}).ServeHTTP(w, r)
		require.Equal(t, c.want, w.Code, "%+v", c)
	}
}
