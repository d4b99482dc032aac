//go:build !plan9 && !wasip1

package middleware

import "syscall"

// The numbers of Windows. Its syscall package invents ECONNREFUSED and so on, and no system
// call returns those. No other system uses these numbers.
const (
	wsaAddrNotAvail = syscall.Errno(10049)
	wsaNetDown      = syscall.Errno(10050)
	wsaNetUnreach   = syscall.Errno(10051)
	wsaNetReset     = syscall.Errno(10052)
	wsaConnAborted  = syscall.Errno(10053)
	wsaConnReset    = syscall.Errno(10054)
	wsaTimedOut     = syscall.Errno(10060)
	wsaConnRefused  = syscall.Errno(10061)
	wsaHostDown     = syscall.Errno(10064)
	wsaHostUnreach  = syscall.Errno(10065)
)

// systemErrors are the errors of the system that NetworkErrors knows.
var systemErrors = []error{
	syscall.ECONNREFUSED, wsaConnRefused,
	syscall.ECONNRESET, wsaConnReset, syscall.ECONNABORTED, wsaConnAborted, syscall.EPIPE,
	syscall.ENETDOWN, wsaNetDown, syscall.ENETUNREACH, wsaNetUnreach, syscall.ENETRESET, wsaNetReset,
	syscall.EHOSTDOWN, wsaHostDown, syscall.EHOSTUNREACH, wsaHostUnreach,
	syscall.ETIMEDOUT, wsaTimedOut, syscall.EADDRNOTAVAIL, wsaAddrNotAvail,
}
