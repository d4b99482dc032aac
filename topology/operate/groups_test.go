package operate_test

import (
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/operate"
)

// The errors of each line have one cause.
func TestFingerprintReplacesWhatDiffers(t *testing.T) {
	t.Parallel()
	for want, texts := range map[string][]string{
		"order #: no such customer": {
			"order 7: no such customer", "order 1234567: no such customer",
			"order 1,000: no such customer", "order -3.25: no such customer",
			"  order 7:\n\tno such customer ",
		},
		"order <id>: gone": {
			"order 7f3e2a10-1111-4222-8333-00000000000a: gone",
			"order 01ARZ3NDEKTSV4RRFFQ69G5FAV: gone", "order 5d41402abc4b2a76b9719d911017c592: gone",
			"order 0x1f: gone", "order 12345678: gone", "order cq8n2f7s1m0kd3x9b4tg: gone",
			"order dGhpcyBpcyBhIHRlc3QgMTIzNDU2Nzg5MA==: gone",
			"order a8Kd/93jXz+Qp1Lm7vB2: gone",
		},
		"order-# of item_#": {"order-17 of item_3", "order-4 of item_99"},
		"dial tcp <address>: connect: connection refused": {
			"dial tcp 10.0.0.7:443: connect: connection refused",
			"dial tcp [::1]:5672: connect: connection refused",
			"dial tcp [fe80::1%eth0]:80: connect: connection refused",
			"dial tcp db-1.shop.internal:5432: connect: connection refused",
			"dial tcp 10.0.0.7: connect: connection refused",
		},
		"read tcp <address>-><address>: i/o timeout": {
			"read tcp 10.0.0.1:5000->10.0.0.2:443: i/o timeout",
			"read tcp [::1]:9->[::2]:8: i/o timeout",
		},
		"no route to <address> or <address>": {
			"no route to 10.1.0.0/16 or ::1", "no route to ::1 or ::2",
		},
		"mail to <email>, again": {"mail to ann@shop.example, again", "mail to a.b+c@d.example, again"},
		`Get "https://api.shop.example/orders/#?<query>": EOF`: {
			`Get "https://api.shop.example/orders/7?token=s3cret": EOF`,
			`Get "https://me:hush@api.shop.example/orders/8#x": EOF`,
		},
		"POST http://<address>/v#/<id> failed": {
			"POST http://10.0.0.7:8080/v1/7f3e2a10-1111-4222-8333-00000000000a failed",
			"POST http://shop.internal:80/v2/7f3e2a10-1111-4222-8333-00000000000b failed",
		},
		`unknown field "<text>" can't be read`: {
			`unknown field "total" can't be read`, `unknown field "a \"b\" c" can't be read`,
		},
		"unknown field '<text>' of `<text>`": {
			"unknown field 'a b' of `c`", "unknown field '' of `d e`",
		},
		"took #, more than #":  {"took 1m30.5s, more than 10s", "took 250µs, more than 2"},
		"at main.go:#, line #": {"at main.go:42, line 7", "at main.go:7, line 42"},
		"at #-#-#T#:#:#Z": {
			"at 2026-03-01T12:00:00Z", "at 2026-03-01T12:00:00.123456Z",
		},
		"no stock":                            {"no stock"},
		"GetCustomer#ByName: version v#.#rc":  {"GetCustomer2ByName: version v1.25rc"},
		"größe # zu klein, \u202eevil #":      {"größe 7 zu klein, \u202eevil 9"},
		`it ends in a quote: "customer # of`:  {`it ends in a quote: "customer 7 of`},
		"unauthorised: don't retry user's x#": {"unauthorised: don't retry user's x1"},
	} {
		for _, text := range texts {
			_, got := operate.Fingerprint(operate.Letter{Error: text})
			require.Equal(t, want, got, text)
		}
	}
	_, none := operate.Fingerprint(operate.Letter{Reason: "expired"})
	require.Equal(t, "(no error: expired)", none)
	_, none = operate.Fingerprint(operate.Letter{})
	require.Equal(t, "(no error)", none)
}

// A fingerprint has no digit, is valid and short, and is its own fingerprint's ID every time.
func FuzzFingerprint(f *testing.F) {
	for _, seed := range []string{
		"", "order 7", `"a 'b" c'`, "http://1.2.3.4:5/6?7#8", "[::1]:5", "a@b.c", "\xff\x00 1h2",
		strings.Repeat(`"a`, 500), strings.Repeat("1a.", 700), "s3://x1", "-1-1 -1",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, cause := operate.Fingerprint(operate.Letter{Error: text})
		again, _ := operate.Fingerprint(operate.Letter{Error: text})
		require.Equal(t, id, again)
		require.Len(t, id, 12)
		require.True(t, utf8.ValidString(cause))
		require.NotRegexp(t, `[0-9]`, cause)
		require.LessOrEqual(t, len(cause), 9*keys.MaxErrorBytes)
	})
}

// Letters of hostile services, each with its own long cause, queue, handler and reason, do not fill
// the memory, and every letter is counted. Not parallel, because the heap belongs to all tests.
func TestGroupsTakeBoundedMemory(t *testing.T) {
	const letters = 20_000
	long := strings.Repeat("x", 1800)
	word := func(i int) string { // without a digit
		return string([]byte{
			'a' + byte(i/17576%26), 'a' + byte(i/676%26), 'a' + byte(i/26%26), 'a' + byte(i%26),
		})
	}
	before := heap()
	began := time.Now()
	groups, err := operate.GroupByError(func(yield func(operate.Letter, error) bool) {
		for i := range letters {
			name := word(i) + strings.Repeat("n", 300)
			l := operate.Letter{
				ID: name[:255], Error: word(i%2000) + long, Queue: name, Handler: name,
				Reason: header.Reason(name),
			}
			if !yield(l, nil) {
				return
			}
		}
	})
	took := time.Since(began)
	require.NoError(t, err)
	after := heap()
	t.Logf("%d letters in %v, %d KiB more of live heap", letters, took, (after-before)>>10)
	require.Len(t, groups, 1001)
	counted := 0
	for _, g := range groups {
		counted += g.Count
		for _, counts := range []map[string]int{g.Queues, g.Handlers, g.Reasons} {
			require.LessOrEqual(t, len(counts), 21)
			sum := 0
			for n := range maps.Values(counts) {
				sum += n
			}
			require.Equal(t, g.Count, sum)
		}
	}
	require.Equal(t, letters, counted)
	at := slices.IndexFunc(groups, func(g operate.Group) bool { return g.Error == "(others)" })
	require.Equal(t, 10_000, groups[at].Count)
	require.Empty(t, groups[at].ID)
	require.Less(t, after-before, uint64(48<<20))
	runtime.KeepAlive(groups)
}
