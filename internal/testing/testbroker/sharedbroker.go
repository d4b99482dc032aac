package testbroker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
)

// shared is the node of this test binary, if one was started.
var shared struct {
	sync.Mutex
	node *Node
	err  error
}

// URL returns the address of the broker that all tests share: AMQP_URL if it is set, else a node
// that is started once for this test binary. A test must not break it, and uses only names that no
// other test uses, see [Queue]. Without a broker the test is skipped and names the missing package.
func URL(tb testing.TB) string {
	tb.Helper()
	if os.Getenv("MILLPOND_NO_BROKER") != "" {
		tb.Skip("needs a broker: MILLPOND_NO_BROKER is set")
	}
	if url := os.Getenv("AMQP_URL"); url != "" {
		return url
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.node == nil && shared.err == nil {
		shared.node, shared.err = Start(context.Background())
	}
	switch err := shared.err; {
	case err == nil:
		return shared.node.URL()
	case errors.Is(err, ErrNoBroker) && os.Getenv("MILLPOND_REQUIRE_BROKER") == "":
		tb.Skipf("needs a broker: set AMQP_URL, or use `make test`: %v", err)
	default:
		tb.Fatalf("start the shared broker: %v", err)
	}
	return ""
}

// Main runs the tests of a package, then ends the shared node if there is one, then calls the
// functions in after, and exits. An error of after fails the package:
//
//	func TestMain(m *testing.M) { testbroker.Main(m, func() error { return goleak.Find() }) }
func Main(m *testing.M, after ...func() error) {
	code := m.Run()
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "testbroker:", err)
			code = max(code, 1)
		}
	}
	fail(closeShared())
	for _, f := range after {
		fail(f())
	}
	os.Exit(code)
}

func closeShared() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.node == nil {
		return nil
	}
	err := shared.node.Close()
	shared.node = nil
	return err
}

// sharedURL returns the shared broker's address if a test has used it.
func sharedURL() (string, bool) {
	if url := os.Getenv("AMQP_URL"); url != "" {
		return url, true
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.node == nil {
		return "", false
	}
	return shared.node.URL(), true
}

// RequireNode skips the test unless [Private] could start a node for it.
func RequireNode(tb testing.TB) {
	tb.Helper()
	requireInstallation(tb)
}

// requireInstallation finds a broker that tests may start, or ends the test.
func requireInstallation(tb testing.TB) installation {
	tb.Helper()
	if os.Getenv("MILLPOND_NO_BROKER") != "" {
		tb.Skip("needs a broker to start: MILLPOND_NO_BROKER is set")
	}
	in, err := findInstallation(os.Getenv("MILLPOND_BROKER"))
	switch require := os.Getenv("MILLPOND_REQUIRE_BROKER"); {
	case err == nil:
	case errors.Is(err, ErrNoBroker) && (require == "" || require == "url"):
		tb.Skipf("needs a broker to start, AMQP_URL is not enough: %v", err)
	default:
		tb.Fatalf("needs a broker to start, AMQP_URL is not enough: %v", err)
	}
	return in
}
