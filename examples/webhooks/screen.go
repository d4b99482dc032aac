package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// screen prints lines above a progress line, which it shows only if live is set. Its methods may be
// called from many goroutines.
type screen struct {
	mu       sync.Mutex
	out      io.Writer
	live     bool
	progress func() string // nil: no progress line now
}

// isTerminal reports whether out is a terminal that can draw a line over another.
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
	// A wrapped line cannot be drawn over: on a narrow terminal it is cut.
	wrapOff, wrapOn = "\x1b[?7l", "\x1b[?7h"
)

// print prints a text that ends a line.
func (s *screen) print(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draw(fmt.Sprintf(format, args...))
}

// draw writes once, so that nothing flickers. mu must be locked.
func (s *screen) draw(text string) {
	if s.live && s.progress != nil {
		text = eraseLine + text + wrapOff + s.progress() + wrapOn
	}
	_, _ = s.out.Write([]byte(text))
}

// follow keeps the progress line up to date. The returned function removes the line.
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
