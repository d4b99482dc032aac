package middleware

import (
	"context"
	"io"
	"net"
	"slices"
)

// Timeouts takes for retryable what says of itself that it is a timeout: every
// error with a method Timeout() bool that returns true, wherever in the tree of
// the handler's error. Among them are timeouts of the network, also of a DNS
// lookup, os.ErrDeadlineExceeded and context.DeadlineExceeded.
//
// The context that a message enters DelayedRetry with is never classified: when
// it ends, handling was interrupted.
func Timeouts() Classifier { return RetryableIf(isTimeout) }

// ContextDeadline takes context.DeadlineExceeded for retryable, in the sense of
// errors.Is: a Timeout middleware or a context of the handler's own. [Timeouts]
// has it among others.
func ContextDeadline() Classifier { return RetryableErrors(context.DeadlineExceeded) }

// RefusedConnections takes a refused connection for retryable: nobody listens at
// that address, not yet or not any more. [NetworkErrors] has it among others.
func RefusedConnections() Classifier { return RetryableErrors(refusedErrors...) }

// NetworkErrors takes temporary trouble of the network for retryable, wherever
// in the tree of the handler's error:
//
//   - a connection that is refused, reset, aborted, closed or broken
//   - a host or network that is down or unreachable, no local address left
//   - a timeout of the network, but not a bare context.DeadlineExceeded
//   - a DNS lookup that failed for now; not a name that does not exist
//   - io.EOF and io.ErrUnexpectedEOF, with which a lost connection shows
//
// A decoder that runs out of input returns io.EOF, too: where that is possible,
// put a classifier for it before this one.
func NetworkErrors() Classifier {
	return RetryableIf(func(err error) (found bool) {
		walk(err, func(err error) bool {
			found = isNetworkError(err)
			return !found
		})
		return found
	})
}

// isNetworkError looks at err alone, without what it wraps.
func isNetworkError(err error) bool {
	if err == context.DeadlineExceeded {
		return false // it is a net.Error, but says nothing of a network
	}
	if err == io.EOF || err == io.ErrUnexpectedEOF || err == net.ErrClosed {
		return true
	}
	if slices.Contains(refusedErrors, err) || slices.Contains(lostErrors, err) {
		return true
	}
	if lookup, ok := as[*net.DNSError](err); ok && lookup.IsTemporary {
		return true
	}
	timeout, ok := as[net.Error](err)
	return ok && timeout.Timeout()
}

func isTimeout(err error) (found bool) {
	walk(err, func(err error) bool {
		timeout, ok := as[interface {
			error
			Timeout() bool
		}](err)
		found = ok && timeout.Timeout()
		return !found
	})
	return found
}
