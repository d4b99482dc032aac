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
	const deadline, refused, network = "deadline", "refused", "network"
	classifiers := map[string]middleware.Classifier{
		deadline: middleware.RetryableErrors(context.DeadlineExceeded),
		refused:  middleware.RetryableErrors(syscall.ECONNREFUSED),
		network:  middleware.NetworkErrors(),
	}
	for name, test := range map[string]struct {
		err  error
		want []string
	}{
		"refused":               {systemCall(syscall.ECONNREFUSED), []string{refused, network}},
		"refused, Windows":      {systemCall(10061), []string{network}},
		"refused, in a request": {request(systemCall(syscall.ECONNREFUSED)), []string{refused, network}},
		"refused, joined": {
			errors.Join(errBoom, systemCall(syscall.ECONNREFUSED)), []string{refused, network},
		},
		"refused, in a multierror": {
			&multierror{errBoom, systemCall(syscall.ECONNREFUSED)}, []string{refused, network},
		},
		"reset":                 {systemCall(syscall.ECONNRESET), []string{network}},
		"reset, Windows":        {systemCall(10054), []string{network}},
		"aborted":               {systemCall(syscall.ECONNABORTED), []string{network}},
		"broken pipe":           {systemCall(syscall.EPIPE), []string{network}},
		"closed":                {&net.OpError{Op: "read", Err: net.ErrClosed}, []string{network}},
		"host unreachable":      {systemCall(syscall.EHOSTUNREACH), []string{network}},
		"network unreachable":   {systemCall(syscall.ENETUNREACH), []string{network}},
		"host down":             {systemCall(syscall.EHOSTDOWN), []string{network}},
		"no local address left": {systemCall(syscall.EADDRNOTAVAIL), []string{network}},
		"timed out":             {systemCall(syscall.ETIMEDOUT), []string{network}},
		"EOF":                   {request(io.EOF), []string{network}},
		"unexpected EOF":        {fmt.Errorf("read body: %w", io.ErrUnexpectedEOF), []string{network}},
		"read deadline": {
			&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, []string{network},
		},
		"request past a deadline": {
			request(context.DeadlineExceeded), []string{deadline, network},
		},
		"context deadline": {context.DeadlineExceeded, []string{deadline}},
		"context deadline, in %w": {
			fmt.Errorf("a: %w", context.DeadlineExceeded), []string{deadline},
		},
		"context deadline in a panic": {
			wmiddleware.RecoveredPanicError{V: context.DeadlineExceeded}, nil,
		},
		"context cancelled": {request(context.Canceled), nil},
		"DNS, for now": {
			&net.DNSError{Err: "server misbehaving", IsTemporary: true}, []string{network},
		},
		"DNS, timeout": {
			&net.DNSError{Err: "i/o timeout", IsTimeout: true}, []string{network},
		},
		"DNS, no such host":            {&net.DNSError{Err: "no such host", IsNotFound: true}, nil},
		"not the network":              {os.ErrNotExist, nil},
		"another number of the system": {systemCall(syscall.EACCES), nil},
		"an address that is none": {
			&net.OpError{Op: "dial", Err: &net.AddrError{Err: "missing port"}}, nil,
		},
		"an error that hides a timeout from what wraps it": {
			request(fmt.Errorf("b: %w", os.ErrDeadlineExceeded)), []string{network},
		},
		"an error that cannot be compared": {chain{errBoom}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := map[string]bool{}
			for _, classifier := range test.want {
				want[classifier] = true
			}
			for classifier, c := range classifiers {
				class, wanted := classOf(t, c, test.err), header.Class("")
				if want[classifier] {
					wanted = retryable
				}
				assert.Equal(t, wanted, class, classifier)
			}
		})
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
