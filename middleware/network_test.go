//go:build !plan9 && !wasip1

package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"syscall"
	"testing"
	"time"

	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

func systemCall(errno syscall.Errno) error {
	return &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", errno)}
}

func request(err error) error {
	return fmt.Errorf("order 7: %w", &url.Error{Op: "Post", URL: "http://stock", Err: err})
}

func TestErrorsOfTheNetwork(t *testing.T) {
	t.Parallel()
	for want, errs := range map[header.Class]map[string]error{
		retryable: {
			"refused":                  systemCall(syscall.ECONNREFUSED),
			"refused, Windows":         systemCall(10061),
			"refused, in a request":    request(systemCall(syscall.ECONNREFUSED)),
			"refused, joined":          errors.Join(errBoom, systemCall(syscall.ECONNREFUSED)),
			"refused, in a multierror": &multierror{errBoom, systemCall(syscall.ECONNREFUSED)},
			"reset":                    systemCall(syscall.ECONNRESET),
			"reset, Windows":           systemCall(10054),
			"aborted":                  systemCall(syscall.ECONNABORTED),
			"broken pipe":              systemCall(syscall.EPIPE),
			"closed":                   &net.OpError{Op: "read", Err: net.ErrClosed},
			"host unreachable":         systemCall(syscall.EHOSTUNREACH),
			"network unreachable":      systemCall(syscall.ENETUNREACH),
			"host down":                systemCall(syscall.EHOSTDOWN),
			"no local address left":    systemCall(syscall.EADDRNOTAVAIL),
			"timed out":                systemCall(syscall.ETIMEDOUT),
			"EOF":                      request(io.EOF),
			"unexpected EOF":           fmt.Errorf("read body: %w", io.ErrUnexpectedEOF),
			"read deadline":            &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded},
			"request past a deadline":  request(context.DeadlineExceeded),
			"DNS, for now":             &net.DNSError{Err: "server misbehaving", IsTemporary: true},
			"DNS, timeout":             &net.DNSError{Err: "i/o timeout", IsTimeout: true},
			"a timeout that is hidden": request(fmt.Errorf("b: %w", os.ErrDeadlineExceeded)),
		},
		"": {
			"context deadline":                 context.DeadlineExceeded,
			"context deadline, in %w":          fmt.Errorf("a: %w", context.DeadlineExceeded),
			"context deadline in a panic":      wmiddleware.RecoveredPanicError{V: context.DeadlineExceeded},
			"context cancelled":                request(context.Canceled),
			"DNS, no such host":                &net.DNSError{Err: "no such host", IsNotFound: true},
			"not the network":                  os.ErrNotExist,
			"another number of the system":     systemCall(syscall.EACCES),
			"no address":                       &net.OpError{Op: "dial", Err: &net.AddrError{}},
			"an error that cannot be compared": chain{errBoom},
		},
	} {
		for name, err := range errs {
			assert.Equal(t, want, classOf(t, middleware.NetworkErrors(), err), name)
		}
	}
}

func TestARealConnectionThatIsRefused(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Skipf("needs a local network: %v", err)
	}
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	_, err = net.Dial("tcp", address)
	assert.Equal(t, retryable, classOf(t, middleware.NetworkErrors(), err))
}

func TestARealReadThatTimesOut(t *testing.T) {
	t.Parallel()
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	require.NoError(t, client.SetReadDeadline(time.Now().Add(-time.Second)))
	_, err := client.Read(make([]byte, 1))
	assert.Equal(t, retryable, classOf(t, middleware.NetworkErrors(), err))
}

func TestANetworkErrorThatWrapsItselfEnds(t *testing.T) {
	t.Parallel()
	assert.Empty(t, classOf(t, middleware.NetworkErrors(), loop{}))
}
