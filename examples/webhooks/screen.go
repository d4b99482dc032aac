package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// screen prints lines above a progress line, which is there only while live is
// set. Its methods may be called from many goroutines.
type screen struct {
	mu       sync.Mutex
	out      io.Writer
	live     bool
	progress func() string // nil: no progress line now
}

// isTerminal reports whether out is one that can draw a line over another.
func isTerminal(out io.Writer) bool {
	file, isFile := out.(*os.File)
	if !isFile || os.Getenv("TERM") == "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

const (
	eraseLine = "\r\x1b[K"
	// A line that wraps cannot be drawn over: on a narrow terminal it is cut.
	wrapOff, wrapOn = "\x1b[?7l", "\x1b[?7h"
)

// print prints text, which ends a line.
func (s *screen) print(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draw(fmt.Sprintf(format, args...))
}

// draw must be called with mu locked. One write, so that nothing flickers.
func (s *screen) draw(text string) {
	if s.live && s.progress != nil {
		text = eraseLine + text + wrapOff + s.progress() + wrapOn
	}
	_, _ = s.out.Write([]byte(text))
}

// follow keeps the progress line up to date until the function it returns is
// called, which removes the line.
func (s *screen) follow(progress func() string) (stop func()) {
	if !s.live {
		return func() {}
	}
	s.mu.Lock()
	s.progress = progress
	s.mu.Unlock()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			s.print("")
			select {
			case <-tick.C:
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
		s.mu.Lock()
		defer s.mu.Unlock()
		s.progress = nil
		s.draw(eraseLine)
	}
}
