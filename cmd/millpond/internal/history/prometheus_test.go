package history_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/history"
)

// Given a server that speaks the API of Prometheus, then a chart has its values at their times. The
// names of queues are no part of the language of the queries.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	down := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down {
			http.Error(w, `{"status":"error","error":"too busy"}`, http.StatusServiceUnavailable)
			return
		}
		result := []any{}
		query := r.FormValue("query")
		start, _ := strconv.Atoi(r.FormValue("start"))
		if strings.Contains(query, "messages_ready{vhost") {
			require.Contains(t, query, `{vhost="/",queue="a\"} or \\b"}`)
			require.Equal(t, "360", r.FormValue("step"))
			result = append(result, map[string]any{"values": [][2]any{
				{start, "3"}, {float64(start) + 720, "4.5"}, {start + 1080, "NaN"},
			}})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"status": "success", "data": map[string]any{"result": result},
		})
	}))
	t.Cleanup(server.Close)
	p, err := history.NewPrometheus(server.URL + "/prometheus/")
	require.NoError(t, err)
	names := history.Names{Vhost: "/", Queue: `a"} or \b`, Dead: []string{"a.dlq"}}
	c, err := p.Chart(t.Context(), names, noon, 24*time.Hour)
	require.NoError(t, err)
	require.Len(t, c.Times, history.Points+1)
	text, err := json.Marshal([]any{
		c.Columns["ready"][:4], c.Columns["dead"][:1], noon.Unix() - c.Times[0],
	})
	require.NoError(t, err)
	require.JSONEq(t, fmt.Sprintf(`[[3,null,4.5,null],[null],%d]`, 24*3600), string(text))
	down = true
	_, err = p.Chart(t.Context(), names, noon, time.Hour)
	require.ErrorContains(t, err, "Prometheus answers 503 Service Unavailable: too busy")
	server.Close()
	_, err = p.Chart(t.Context(), names, noon, time.Hour)
	require.ErrorContains(t, err, "Prometheus does not answer: ")
	_, err = history.NewPrometheus("http://user:secret@ host:9090")
	require.EqualError(t, err, "the URL of Prometheus must be as http://host:9090")
}
