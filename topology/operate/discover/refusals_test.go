package discover_test

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology/operate/discover"
)

// An answer that is none is an error that names the address and the way out, and never a vhost
// without millpond.
func TestAnswersThatAreNone(t *testing.T) {
	t.Parallel()
	const page = `{"items":[],"total_count":0}`
	for name, c := range map[string]struct {
		status, otherStatus int
		queues              string
		texts               []string
	}{
		"forbidden": {403, 403, `{}`, []string{"403", "permissions in the vhost"}},
		"not found": {404, 404, `{}`, []string{"no such vhost", "^$ is enough"}},
		"no exchanges": {
			200, 500, `{"total_count":1,"items":[` + waitQueue + `]}`, []string{"exchanges", "500"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(r.URL.Path, "/api/queues/") {
					w.WriteHeader(c.status)
					_, _ = w.Write([]byte(c.queues))
					return
				}
				w.WriteHeader(c.otherStatus)
				_, _ = w.Write([]byte(page))
			}))
			t.Cleanup(server.Close)
			v, err := discover.Find(t.Context(), "http://me:secret@"+server.Listener.Addr().String(), "shop")
			rig.RequireTexts(t, err, append(c.texts, `discover vhost "shop"`)...)
			require.Contains(t, err.Error(), server.Listener.Addr().String())
			require.NotContains(t, err.Error(), "secret")
			require.Empty(t, v)
		})
	}
}

const waitQueue = `{"name":"q.wait.1s","type":"quorum","arguments":{"x-queue-type":"quorum",
	"x-delivery-limit":2147483647,"x-message-ttl":1000,"x-dead-letter-strategy":"at-least-once",
	"x-overflow":"reject-publish","x-dead-letter-exchange":"","x-dead-letter-routing-key":"q"}}`

// A page that has fewer queues than it says is uncertain. Consumers and policies that cannot be
// seen are told.
func TestWhatCannotBeSeenIsTold(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/api/queues/") && r.URL.Query().Get("page") == "1":
			_, _ = w.Write([]byte(`{"total_count":3,"items":[` + waitQueue +
				`,{"name":"q","type":"quorum"}]}`))
		case r.URL.Query().Has("page"):
			_, _ = w.Write([]byte(`{"total_count":0,"items":[]}`))
		default:
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	t.Cleanup(server.Close)
	v, err := discover.Find(t.Context(), "http://me:secret@"+server.Listener.Addr().String(), "shop")
	require.NoError(t, err)
	require.Len(t, v.Mains, 1)
	told(t, v, "", `queues of vhost "shop" were declared or deleted`)
	told(t, v, "", `the consumers of vhost "shop" could not be seen`, "403")
	told(t, v, "", `the policies of vhost "shop" could not be seen`, "403")
	require.False(t, v.Mains[0].Ready.Known())
	require.Equal(t, -1, v.Mains[0].Ready.N)
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	_, err := discover.Find(t.Context(), "amqp://me:secret@host", "/", nil, discover.WithLooks(nil),
		discover.WithCounts(nil))
	rig.RequireTexts(t, err, "option 1 is nil", "WithLooks", "WithCounts", "http://")
	require.NotContains(t, err.Error(), "secret")
}

func TestHTTPSTrustsOnlyWhatItIsTold(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"total_count":0,"items":[]}`))
	}))
	t.Cleanup(server.Close)
	server.Config.ErrorLog = nil
	url := "https://me:secret@" + server.Listener.Addr().String()
	_, err := discover.Find(t.Context(), url, "/")
	require.ErrorContains(t, err, "certificate")
	config := server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	v, err := discover.Find(t.Context(), url, "/", discover.WithTLS(config))
	require.NoError(t, err)
	require.True(t, v.Empty())
	require.IsType(t, &tls.Config{}, config)
}

func TestManagementURL(t *testing.T) {
	t.Parallel()
	for amqpURL, want := range map[string]string{
		"amqp://me:p%40ss@localhost/shop":   "http://me:p%40ss@localhost:15672",
		"amqp://127.1.2.3:1234":             "http://guest:guest@127.1.2.3:15672",
		"amqp://me:secret@[::1]:5672/":      "http://me:secret@[::1]:15672",
		"amqps://me:secret@rabbit.shop/":    "https://me:secret@rabbit.shop:15671",
		"amqps://me:secret@127.0.0.1:5671/": "https://me:secret@127.0.0.1:15671",
		"AMQPS://me:secret@[2001:db8::1]":   "https://me:secret@[2001:db8::1]:15671",
	} {
		got, err := discover.ManagementURL(amqpURL, false)
		require.NoError(t, err, amqpURL)
		require.Equal(t, want, got)
	}
	for _, amqpURL := range []string{
		"amqp://me:secret@rabbit.shop/", "amqp://me:secret@10.0.0.1", "amqp://me:secret@localhost.shop/",
		"amqp://me:secret@[::2]/", "amqp://me:secret@0.0.0.0/",
	} {
		_, err := discover.ManagementURL(amqpURL, false)
		rig.RequireTexts(t, err, "in the clear", "https://user:password@", ":15671")
		require.NotContains(t, err.Error(), "secret")
	}
	got, err := discover.ManagementURL("amqp://me:secret@rabbit.shop/", true)
	require.NoError(t, err)
	require.Equal(t, "http://me:secret@rabbit.shop:15672", got)
	for _, bad := range []string{"", "http://host", "amqp://me:sec/ret@host", "amqp://host:99999999"} {
		_, err := discover.ManagementURL(bad, true)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "ret@")
	}
}

// An unknown time was printed as the year 1.
func TestJSONOfAQueueHadATimeThatIsUnknown(t *testing.T) {
	t.Parallel()
	unknown, err := json.Marshal(discover.Main{})
	require.NoError(t, err)
	require.NotContains(t, string(unknown), "Oldest")
	known, err := json.Marshal(discover.Queue{Oldest: time.Unix(0, 0).UTC()})
	require.NoError(t, err)
	require.Contains(t, string(known), `"Oldest":"1970-01-01T00:00:00Z"`)
}
