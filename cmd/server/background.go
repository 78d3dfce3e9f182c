package main

import (
	"context"
	"math/rand/v2"
	"time"
)

// repeat calls work every so often until ctx ends, and again immediately while work reports that
// there is more. The first call comes after a random part of the interval: instances that were
// started together spread out.
func repeat(ctx context.Context, every time.Duration, work func() (more bool)) {
	wait := rand.N(every)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if wait = every; work() {
			wait = 0
		}
	}
}
