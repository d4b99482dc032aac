//go:build unix

package link

import (
	"errors"
	"os"
	"syscall"
)

// send writes as many bytes as the system takes without waiting.
func send(conn syscall.RawConn, b []byte) (sent int, err error) {
	problem := conn.Write(func(fd uintptr) bool {
		for sent < len(b) {
			var n int
			n, err = syscall.Write(int(fd), b[sent:])
			switch {
			case err == nil:
				sent += n
			case errors.Is(err, syscall.EINTR):
			case errors.Is(err, syscall.EAGAIN):
				err = nil
				return true
			default:
				err = os.NewSyscallError("write", err)
				return true
			}
		}
		return true
	})
	if err == nil {
		err = problem
	}
	return sent, err
}
