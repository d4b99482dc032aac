package topology_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// entry is one line that was logged.
type entry struct {
	msg    string
	err    error
	fields watermill.LogFields
}

func (c *capture) log(level, msg string, err error, fields watermill.LogFields) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries = append(c.entries, entry{msg: msg, err: err, fields: fields})
	c.lines = append(c.lines, fmt.Sprintf("%s %s %s err=%v %v", time.Now().Format("15:04:05.000"), level, msg, err, fields))
}

func (c *capture) Error(msg string, err error, fields watermill.LogFields) {
	c.log("error", msg, err, fields)
}
func (c *capture) Info(msg string, fields watermill.LogFields) { c.log("info", msg, nil, fields) }
func (c *capture) Debug(msg string, fields watermill.LogFields) {
	if c.verbose {
		c.log("debug", msg, nil, fields)
	}
}
func (c *capture) Trace(msg string, fields watermill.LogFields) {
	if c.verbose {
		c.log("trace", msg, nil, fields)
	}
}
func (c *capture) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return withFields{c, fields}
}

// text returns everything logged so far.
func (c *capture) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.lines, "\n")
}

// about returns the entries that carry a message id, in their order.
func (c *capture) about(id string) []entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []entry
	for _, e := range c.entries {
		if e.fields["message_id"] == id {
			found = append(found, e)
		}
	}
	return found
}

func (c *capture) dump(t testing.TB) {
	t.Helper()
	t.Logf("log:\n%s", c.text())
}

type withFields struct {
	c      *capture
	fields watermill.LogFields
}

func (w withFields) Error(msg string, err error, fields watermill.LogFields) {
	w.c.Error(msg, err, w.fields.Add(fields))
}
func (w withFields) Info(msg string, fields watermill.LogFields) { w.c.Info(msg, w.fields.Add(fields)) }
func (w withFields) Debug(msg string, fields watermill.LogFields) {
	w.c.Debug(msg, w.fields.Add(fields))
}
func (w withFields) Trace(msg string, fields watermill.LogFields) {
	w.c.Trace(msg, w.fields.Add(fields))
}
func (w withFields) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return withFields{w.c, w.fields.Add(fields)}
}

// saying returns the lines that contain a text, without their time.
func (c *capture) saying(text string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []string
	for _, line := range c.lines {
		if _, line, _ := strings.Cut(line, " "); strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}
