//go:build plan9 || wasip1

package middleware

// The errors of the network have no numbers on these systems.
var systemErrors []error
