//go:build plan9 || wasip1

package middleware

// Errors of the network have no numbers here.
var refusedErrors, lostErrors []error
