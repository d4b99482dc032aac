package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestMain(m *testing.M) { testbroker.Main(m, func() error { return goleak.Find() }) }

func TestOnlyBillingIsTriedAgain(t *testing.T) {
	t.Parallel()
	url, prefix := testbroker.URL(t), testbroker.Queue(t)
	for _, queue := range []string{".PlaceOrder", ".OrderPlaced_billing", ".OrderPlaced_shipping"} {
		testbroker.Delete(t, prefix+queue, prefix+queue+".dlq", prefix+queue+".wait.300ms",
			prefix+queue+".wait.1s")
	}
	t.Cleanup(func() {
		require.NoError(t, testbroker.Channel(t, url).ExchangeDelete(prefix+".OrderPlaced", false, false))
	})
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), url, prefix, &out), "%s", &out)
	t.Log(out.String())
	for line, times := range map[string]int{
		"order 1 of bread is placed\n":                                   1,
		"order 1 is not billed at attempt 1: the bank does not answer\n": 1,
		"order 1 is not billed at attempt 2: the bank does not answer\n": 1,
		"order 1 is billed at attempt 3\n":                               1,
		"order 1 is shipped at attempt 1\n":                              1,
		"shipped":                                                        1,
	} {
		require.Equal(t, times, strings.Count(out.String(), line), line)
	}
	for _, queue := range []string{".PlaceOrder", ".OrderPlaced_billing", ".OrderPlaced_shipping"} {
		require.Equal(t, 0, testbroker.Depth(t, url, prefix+queue+".dlq"), queue)
	}
}
