package publisher

// Lanes is how many targets have a channel of their own.
func (p *Publisher) Lanes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.apart)
}
