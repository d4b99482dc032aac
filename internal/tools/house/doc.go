// Package house has only tests, of rules for the whole repository: which package may import which,
// and which names need an Example.
package house
