package operate

import (
	"context"
	"time"
)

// catchUp is how much of a delay is made up for by going faster afterwards.
const catchUp = 250 * time.Millisecond

// pace lets so many a second pass. Zero lets all pass.
type pace struct {
	interval time.Duration
	next     time.Time
}

func newPace(rate float64) pace {
	if rate <= 0 {
		return pace{}
	}
	return pace{interval: time.Duration(float64(time.Second) / rate)}
}

// wait returns when it is the next one's turn.
func (p *pace) wait(ctx context.Context) error {
	if p.interval == 0 {
		return context.Cause(ctx)
	}
	now := time.Now()
	if p.next.IsZero() {
		p.next = now
	}
	if earliest := now.Add(-catchUp); p.next.Before(earliest) {
		p.next = earliest
	}
	pause := p.next.Sub(now)
	p.next = p.next.Add(p.interval)
	if pause <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
