package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

const prefix = "github.com/millpond-go/millpond/"

// Given the reports of a walk and of an idle second, then the functions that ran in both are
// listed apart, and functions of tools and tests are not listed.
func TestTickingFunctionsAreSetApart(t *testing.T) {
	t.Parallel()
	walked := functions(prefix + "topology/client.go:12:\tClient.tick\t\t100.0%\n" +
		prefix + "topology/client.go:20:\tClient.route\t\t50.0%\n" +
		prefix + "topology/client.go:40:\tClient.Close\t\t0.0%\n" +
		prefix + "internal/wire/copy.go:7:\tcompose\t\t8.3%\n" +
		prefix + "internal/tools/walk/onemessage/main.go:7:\tmain\t\t8.3%\n" +
		prefix + "internal/testing/frame/frame.go:7:\tRead\t\t8.3%\n" +
		"total\t\t(statements)\t\t20.0%\n")
	idle := functions(prefix + "topology/client.go:12:\tClient.tick\t\t70.0%\n")
	var out bytes.Buffer
	compare(walked, idle).print(&out)
	require.Equal(t, `one failed message passes: 2 files, 2 functions
  internal/wire/copy.go: compose
  topology/client.go: Client.route
ran while no message was there, too: 1 files, 1 functions
  topology/client.go: Client.tick
`, out.String())
}
