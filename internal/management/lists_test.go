package management_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/management"
)

// listed serves a list of queues in pages as all versions of RabbitMQ do: at most 500 a page, and a
// page behind the last is refused. total is asked before each page.
func listed(t *testing.T, total func(page int) int) *management.API {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ask := r.URL.Query()
		page, _ := strconv.Atoi(ask.Get("page"))
		n := total(page)
		first := (page - 1) * 500
		if ask.Get("page_size") != "500" || ask.Get("sort") != "name" || page > 1 && first >= n {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"error":"page_out_of_range"}`))
			return
		}
		var items []string
		for i := first; i < min(first+500, n); i++ {
			items = append(items, fmt.Sprintf(`{"name":"q%04d","arguments":{},"messages_ready":%d}`, i, i))
		}
		_, _ = fmt.Fprintf(w, `{"total_count":%d,"items":[%s]}`, n, strings.Join(items, ","))
	}))
	t.Cleanup(server.Close)
	return open(t, "http://u:p@"+server.Listener.Addr().String())
}

func TestQueuesAreReadInPages(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 499, 500, 501, 1000, 1203} {
		var seen []management.Queue
		api := listed(t, func(int) int { return n })
		settled, err := api.Queues(t.Context(), "v", func(q management.Queue) { seen = append(seen, q) })
		require.NoError(t, err)
		require.True(t, settled)
		require.Len(t, seen, n)
		for i, q := range seen {
			require.Equal(t, fmt.Sprintf("q%04d", i), q.Name)
			require.Equal(t, i, *q.Ready)
			require.Nil(t, q.Messages)
		}
	}
}

// Given that the list shrinks behind the reader, then the last page is refused, and the list is
// read again. A list that never settles is read three times, and said to be uncertain.
func TestListThatShrinksIsReadAgain(t *testing.T) {
	t.Parallel()
	for passes, calm := range map[int]bool{2: true, 3: false} {
		first := 0
		names := map[string]int{}
		api := listed(t, func(page int) int {
			if page == 1 {
				first++
			}
			if page == 1 && (first == 1 || !calm) {
				return 501
			}
			return 500
		})
		settled, err := api.Queues(t.Context(), "v", func(q management.Queue) { names[q.Name]++ })
		require.NoError(t, err)
		require.Equal(t, calm, settled)
		require.Len(t, names, 500)
		require.Equal(t, passes, names["q0000"])
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	var exchanges []management.Exchange
	api := serve(t, "/api/exchanges/v", http.StatusOK, `{"total_count":1,"items":[{"name":"e",
		"type":"topic","auto_delete":true,"arguments":{"alternate-exchange":"e"}}]}`)
	settled, err := api.Exchanges(t.Context(), "v", func(e management.Exchange) {
		exchanges = append(exchanges, e)
	})
	require.NoError(t, err)
	require.True(t, settled)
	require.Equal(t, []management.Exchange{{
		Name: "e", Kind: "topic", AutoDelete: true,
		Arguments: management.Object{"alternate-exchange": "e"},
	}}, exchanges)

	api = serve(t, "/api/exchanges/v/a%2Fb/bindings/source", http.StatusOK, `[
		{"source":"a/b","destination":"q","destination_type":"queue","routing_key":"k","arguments":{}},
		{"destination":"e","destination_type":"exchange","arguments":{"x-match":"all"}}]`)
	bound, err := api.Bindings(t.Context(), "v", "a/b")
	require.NoError(t, err)
	require.Len(t, bound, 2)
	require.Equal(t, "q", bound[0].Destination)
	require.Equal(t, management.Object{"x-match": "all"}, bound[1].Arguments)
}

func TestListsThatAreNone(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{}`, `[`, `[{}`, `[1]`, ``} {
		_, err := serve(t, "/api/nodes", http.StatusOK, body).Nodes(t.Context())
		require.ErrorContains(t, err, "not an answer of the management API", body)
	}
	for body, want := range map[string]string{
		`{"total_count":2,"items":[{"name":"a"},{"na`: "unexpected EOF", `[]`: "in place of",
		`{"items":[]}`: "no page", `<html>`: "invalid character",
	} {
		_, err := serve(t, "/api/queues/v", http.StatusOK, body).Queues(t.Context(), "v",
			func(management.Queue) {})
		require.ErrorContains(t, err, "not an answer of the management API", body)
		require.ErrorContains(t, err, want, body)
	}
}

// An item of 300 MB took 1.16 GB, and a list had no bound: each was read whole.
func TestAnAnswerHadNoBound(t *testing.T) {
	t.Parallel()
	x := strings.Repeat("x", 1<<19)
	for name, c := range map[string]struct{ begin, piece, want string }{
		"an item": {`[{"name":"c"},{"name":"`, x, "an item has more than 1048576 bytes"},
		"a list": {
			`[{"name":"c"}`, `,{"name":"` + x + `"}`, "it has more than 67108864 bytes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := make(chan int, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				n, err := io.WriteString(w, c.begin)
				for n < 300<<20 && err == nil {
					var more int
					more, err = io.WriteString(w, c.piece)
					n += more
				}
				sent <- n
			}))
			t.Cleanup(server.Close)
			seen, err := open(t, "http://u:p@"+server.Listener.Addr().String()).Nodes(t.Context())
			require.ErrorIs(t, err, management.ErrTooLarge)
			require.ErrorContains(t, err, c.want)
			require.NotEmpty(t, seen, "the items before are shown")
			require.Less(t, <-sent, 100<<20, "the rest is not read")
		})
	}
}
