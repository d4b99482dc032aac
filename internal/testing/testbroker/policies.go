package testbroker

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// SetPolicy sets a policy of a vhost by the management API, which costs far less than rabbitmqctl.
// kind is "policies" or "operator-policies". The broker refuses a key or a value that it does not
// know, and that fails the test.
func SetPolicy(tb testing.TB, api, kind, vhost, name, pattern string, definition map[string]any) {
	tb.Helper()
	body, err := json.Marshal(map[string]any{"pattern": pattern, "definition": definition})
	if err != nil {
		tb.Fatal(err)
	}
	address := api + "/api/" + kind + "/" + url.PathEscape(vhost) + "/" + url.PathEscape(name)
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodPut, address,
		strings.NewReader(string(body)))
	if err != nil {
		tb.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		tb.Fatalf("set policy %q: %v", name, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 != 2 {
		reason, _ := io.ReadAll(resp.Body)
		tb.Fatalf("set policy %q of vhost %q to %s: %s: %s", name, vhost, body, resp.Status, reason)
	}
}
