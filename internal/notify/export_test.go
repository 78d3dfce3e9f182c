package notify

import (
	"context"
	"sync"
)

// Once sends what is due now, one delivery of each endpoint after the other until one fails, and
// returns after that.
func (s *Sender) Once(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	return s.look(ctx, make(chan struct{}, mostAtOnce), &all)
}

var (
	WaitAfter  = waitAfter
	RetryAfter = retryAfter
	Control    = control
)
