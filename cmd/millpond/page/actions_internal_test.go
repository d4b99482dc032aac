package page

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/page/internal/job"
	"github.com/millpond-go/millpond/topology/operate"
)

// The rehearsal of many letters showed nothing until it had ended. It shows how far it is, goes on
// when its page is closed, and leads to its action.
func TestARehearsalShowsItsProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, err := New(Config{URL: "amqp://u:p@127.0.0.1:1/", Management: "http://u:p@127.0.0.1:1"})
		require.NoError(t, err)
		defer func() { require.NoError(t, h.Close()) }()
		counted := make(chan struct{})
		page, tab := context.WithCancel(t.Context())
		post := httptest.NewRequestWithContext(page, http.MethodPost, "/action/rehearse", nil)
		w := httptest.NewRecorder()
		require.NoError(t, h.rehearsing(w, post, func(
			ctx context.Context, tell func(operate.Progress),
		) (found job.Rehearsal, err error) {
			tell(operate.Progress{Seen: 34_000, Total: 100_000})
			<-counted
			found.ID = "a1"
			return found, ctx.Err()
		}))
		tab()
		require.Equal(t, http.StatusSeeOther, w.Code)
		at := w.Header().Get("Location")
		require.Contains(t, at, "/rehearsal?id=")
		get := func() *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
			require.NoError(t, h.rehearsalPage(w, r))
			return w
		}
		require.Contains(t, get().Body.String(), "34\u202f000 of 100\u202f000 messages")
		close(counted)
		synctest.Wait()
		require.Equal(t, "/action?id=a1", get().Header().Get("Location"))
	})
}
