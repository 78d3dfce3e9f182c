package places

// Waiting returns how many requests of a holder wait.
func (t *Turns[K]) Waiting(holder K) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, w := range t.waiting {
		if w.holder == holder {
			n++
		}
	}
	return n
}
