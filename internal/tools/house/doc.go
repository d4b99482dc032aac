// Package house has no code, only tests of what the whole repository promises
// about itself: which package may import which, what has an Example, and that the
// documents' commands and snippets are real.
package house
