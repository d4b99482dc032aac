package management_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/management"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers every request with one status and body, and checks who asks.
func serve(t *testing.T, path string, status int, body string) *management.API {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user != "us@er" || password != "p@ss" || r.URL.EscapedPath() != path {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.Header().Set("Location", "http://127.0.0.1:1/")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	return open(t, "http://us%40er:p%40ss@"+server.Listener.Addr().String()+"/")
}

func open(t *testing.T, url string) *management.API {
	t.Helper()
	api, err := management.New(url, nil)
	require.NoError(t, err)
	return api
}

// The answers below have the shapes of RabbitMQ 3.10 and 4.3, shortened.

func TestQueue(t *testing.T) {
	t.Parallel()
	api := serve(t, "/api/queues/%2F/a%2Fb", http.StatusOK, `{
		"arguments":{"x-message-ttl":100,"x-queue-type":"quorum"}, "durable":true,
		"effective_policy_definition":{"max-length":1000}, "messages":50, "messages_dlx":50,
		"messages_ready":0, "messages_unacknowledged":0, "operator_policy":"ops", "policy":null,
		"type":"quorum"}`)
	q, err := api.Queue(t.Context(), "/", "a/b")
	require.NoError(t, err)
	require.Equal(t, 50, *q.Messages)
	require.Equal(t, 50, *q.Held)
	require.True(t, q.Durable)
}

func TestQueueThatIsNotCountedYet(t *testing.T) {
	t.Parallel()
	api := serve(t, "/api/queues/v/q", http.StatusOK,
		`{"arguments":[],"effective_policy_definition":"","type":"classic"}`)
	q, err := api.Queue(t.Context(), "v", "q")
	require.NoError(t, err)
	require.Nil(t, q.Messages)
	require.Nil(t, q.Held)
	require.Empty(t, q.Arguments)
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	api := serve(t, "/api/policies/%2F", http.StatusOK, `[{"vhost":"/", "name":"p", "pattern":".*",
		"apply-to":"all", "definition":{"delivery-limit":5}, "priority":7}]`)
	list, err := api.Policies(t.Context(), "/")
	require.NoError(t, err)
	require.Equal(t, []management.Policy{{
		Name: "p", Pattern: ".*", ApplyTo: "all", Priority: 7,
		Definition: management.Object{"delivery-limit": json.Number("5")},
	}}, list)
	api = serve(t, "/api/operator-policies/v", http.StatusOK, `[]`)
	list, err = api.OperatorPolicies(t.Context(), "v")
	require.NoError(t, err)
	require.Empty(t, list)
}

// The second node runs no statistics. The limit of the third is no number.
func TestNodes(t *testing.T) {
	t.Parallel()
	api := serve(t, "/api/nodes", http.StatusOK, `[
		{"name":"a@host", "running":true, "mem_alarm":true, "disk_free_alarm":false,
			"disk_free_limit":50000000},
		{"name":"b@host", "running":true}, {"name":"c@host", "disk_free_limit":"unknown"}]`)
	list, err := api.Nodes(t.Context())
	require.NoError(t, err)
	require.Equal(t, []management.Node{
		{Name: "a@host", MemoryAlarm: true, DiskFreeLimit: 5e7},
		{Name: "b@host"},
		{Name: "c@host", DiskFreeLimit: "unknown"},
	}, list)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status     int
		body, want string
	}{
		"unauthorized":       {http.StatusUnauthorized, `{}`, "the tag management "},
		"unavailable":        {http.StatusServiceUnavailable, `{}`, "503"},
		"redirect":           {http.StatusFound, ``, "302"},
		"another server":     {http.StatusOK, `<html>`, "not an answer of the management API"},
		"an object of lists": {http.StatusOK, `{}`, "not an answer of the management API"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := serve(t, "/api/feature-flags", c.status, c.body)
			_, err := api.FeatureFlags(t.Context())
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, api.String()+"/api/feature-flags")
			require.NotContains(t, err.Error(), "p@ss")
			require.NotContains(t, err.Error(), "p%40ss")
		})
	}
	api := serve(t, "/api/exchanges/%2F/gone/bindings/source", http.StatusNotFound,
		`{"error":"Object Not Found"}`)
	_, err := api.Bindings(t.Context(), "/", "gone")
	require.ErrorIs(t, err, management.ErrNotFound)
}

// The text of the status line is the server's: it reached the terminal.
func TestTheTextOfAStatusWasTheServers(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]string{
		"503": ": 503 Service Unavailable", "401": ": 401 Unauthorized: the user needs",
		"400": ": 400 Bad Request: ", "299": ": 299",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, out, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = out.WriteString("HTTP/1.1 " + status + " all \x1b[2Jwell\r\nContent-Length: 0\r\n\r\n")
			_ = out.Flush()
			_ = conn.Close()
		}))
		t.Cleanup(server.Close)
		_, err := open(t, "http://guest:guest@"+server.Listener.Addr().String()).FeatureFlags(t.Context())
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "well")
	}
}

// Given an API that answers a question with status 500 once, then it is asked again, and no more.
func TestAnAnswerThatFailedIsAskedForAgain(t *testing.T) {
	t.Parallel()
	asked, broken := 0, 1
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked <= broken {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte("[]"))
	}))
	t.Cleanup(server.Close)
	api := open(t, "http://guest:guest@"+server.Listener.Addr().String())
	_, err := api.FeatureFlags(t.Context())
	require.NoError(t, err)
	asked, broken = 0, 9
	_, err = api.FeatureFlags(t.Context())
	require.ErrorContains(t, err, "500 Internal Server Error")
	require.Equal(t, 2, asked)
}

func TestServerThatNeverAnswers(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	hang := func(http.ResponseWriter, *http.Request) { <-release }
	server := httptest.NewServer(http.HandlerFunc(hang))
	t.Cleanup(func() { close(release); server.Close() })
	api := open(t, "http://guest:guest@"+server.Listener.Addr().String())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := api.Queue(ctx, "/", "q")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, api.IsOf(ctx, "shop"), context.DeadlineExceeded, "it is not asked again")
}

// An API of another cluster is refused, but not an API that may not say its cluster.
func TestAPIOfAnotherClusterIsRefused(t *testing.T) {
	t.Parallel()
	const path = "/api/cluster-name"
	api := serve(t, path, http.StatusOK, `{"name":"shop"}`)
	require.NoError(t, api.IsOf(t.Context(), "shop"))
	require.NoError(t, api.IsOf(t.Context(), ""))
	require.ErrorContains(t, api.IsOf(t.Context(), "bank"), `belongs to cluster "shop"`)
	api = serve(t, path, http.StatusUnauthorized, `{}`)
	require.NoError(t, api.IsOf(t.Context(), "bank"))
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"http://u:p@host:15672":           "http://host:15672",
		"http://u:p@host:15672/":          "http://host:15672",
		"https://u:p@host/rabbit/api/":    "https://host/rabbit",
		"https://u:p@[::1]:15671/rabbit/": "https://[::1]:15671/rabbit",
	} {
		require.Equal(t, want, open(t, given).String())
	}
}
