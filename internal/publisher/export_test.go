package publisher

// Lanes is how many targets have a channel of their own.
func (p *Publisher) Lanes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.apart)
}

// Retired is how many channels are open only for the confirms that have not come.
func (p *Publisher) Retired() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.retired
}
