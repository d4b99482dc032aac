// Package house has only tests, of rules for the whole repository: which package may import which,
// which names need an Example, which words are plain, how long files are and how they are named.
package house
