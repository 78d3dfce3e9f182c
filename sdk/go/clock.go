package weir

import (
	"context"
	"time"

	"github.com/weir-dev/weir-go/internal/skew"
)

// A clock is the client's time. Tests move it by hand.
type clock interface {
	Now() time.Time
	// Sleep returns after d, or with the context's error if that ends first.
	Sleep(ctx context.Context, d time.Duration) error
}

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now().Add(skew.Clock) }

func (systemClock) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
