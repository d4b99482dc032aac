package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/millpond-go/millpond/topology/operate"
)

const (
	barWidth    = 30
	barInterval = 100 * time.Millisecond
)

// bar shows progress on a terminal, and nothing anywhere else.
type bar struct {
	app    app
	verb   string
	active bool
	began  time.Time

	mu    sync.Mutex
	shown time.Time
	last  operate.Progress
}

func (a app) newBar(verb string) *bar {
	return &bar{app: a, verb: verb, active: a.terminal(a.err), began: time.Now()}
}

// show draws, but no more often than the eye can follow.
func (b *bar) show(p operate.Progress) {
	if !b.active {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = p
	if now := time.Now(); now.Sub(b.shown) >= barInterval {
		b.shown = now
		b.draw(now.Sub(b.began))
	}
}

func (b *bar) draw(took time.Duration) {
	fmt.Fprintf(b.app.err, "\r\x1b[K%s", barText(b.verb, b.last, took))
}

// barText is one line: how much, how fast, how long still.
func barText(verb string, p operate.Progress, took time.Duration) string {
	share := 0.0
	if p.Total > 0 {
		share = float64(p.Seen) / float64(p.Total)
	}
	full := int(share * barWidth)
	line := fmt.Sprintf("%s [%s%s] %3.0f%%  %d/%d seen, %d done, %.0f/s",
		verb, strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), share*100,
		p.Seen, p.Total, p.Done, float64(p.Done)/max(took.Seconds(), 0.001))
	if share > 0 && share < 1 {
		rest := time.Duration(float64(took) * (1 - share) / share)
		line += fmt.Sprintf(", %s left", rest.Round(time.Second))
	}
	return line
}

// end leaves the last state on the screen.
func (b *bar) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.active && b.last.Total > 0 {
		b.draw(time.Since(b.began))
		fmt.Fprintln(b.app.err)
	}
}
