// Package docs has only tests. They keep the README and the pages of docs true: links lead to
// files, Go compiles, commands run, and each log line, header and guarantee is in the code.
package docs
