package publisher

// Lanes returns how many targets have their own channel.
func (p *Publisher) Lanes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.apart)
}

// Retired returns how many channels are open only for confirms that have not come.
func (p *Publisher) Retired() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.retired
}
