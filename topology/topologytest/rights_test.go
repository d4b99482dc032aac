package topologytest

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// Given an administrator's URL, then a user with the permissions of the plan serves, and is gone
// afterwards. A user with fewer permissions is found.
func TestPermissionsOfThePlanAreTried(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	address, err := url.Parse(api)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(address)
	lessened := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/api/permissions/") {
			const rights = `{"configure": ".*", "write": "^$", "read": ".*"}`
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(rights)), int64(len(rights))
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(lessened.Close)
	less, err := url.Parse(lessened.URL)
	require.NoError(t, err)
	less.User = address.User
	check := named(t, "PermissionsOfThePlanSuffice")
	for name, c := range map[string]struct {
		strategy topology.Strategy
		url      string
		patience time.Duration
		found    bool
	}{
		"PerQueue": {topology.PerQueue{}, api, rig.Patience, false},
		"too few":  {topology.PerQueue{}, less.String(), 3 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := failures(t, Config{
				Strategy: c.strategy, URL: node.URL(), ManagementURL: c.url, Patience: c.patience,
				DeleteShared: true,
			}, func() {}, check...)
			require.Equal(t, c.found, found[check[0].name] != "")
		})
	}
	t.Cleanup(func() {
		users, err := node.RunCtl(context.Background(), "list_users")
		require.NoError(t, err)
		require.NotContains(t, users, "topologytest")
	})
}
