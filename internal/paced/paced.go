// Package paced repeats background work at a pace: regularly, and sooner when there is a reason.
package paced

import (
	"context"
	"time"
)

// Loop repeats work. Use New.
type Loop struct {
	every, gap time.Duration
	wake       chan struct{}
}

// New returns a loop that works after every such time, and soon after Hurry. Between the end of one
// call and the beginning of the next, at least gap passes.
func New(every, gap time.Duration) *Loop {
	return &Loop{every: every, gap: gap, wake: make(chan struct{}, 1)}
}

// Hurry makes Run work soon. It does not wait, and several calls before that are as one.
func (l *Loop) Hurry() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run calls work at once, and again until ctx ends.
func (l *Loop) Run(ctx context.Context, work func()) {
	ticker := time.NewTicker(l.every)
	defer ticker.Stop()
	for {
		work()
		gap := time.NewTimer(l.gap)
		select {
		case <-ctx.Done():
		case <-gap.C:
		}
		gap.Stop()
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-ticker.C:
		}
	}
}
