package billing

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"weir/internal/subscription"
	"weir/internal/tenants"
)

const (
	// stepRetries is how often a step of a comparison that fails is tried again in a row, after
	// pauses of firstPause, two times that, and so on: half a minute in all. The next comparison
	// follows an hour later, and begins with the first subscription.
	stepRetries = 5
	firstPause  = time.Second
)

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// again calls step until it succeeds, up to stepRetries times more as long as its errors may pass.
func (r *Runner) again(ctx context.Context, step func() error) error {
	return r.againFrom(ctx, func() int { return 0 }, step)
}

// againFrom is again for a step that continues where it was, such as a list: as long as progress
// grows, its failures are not in a row.
func (r *Runner) againFrom(ctx context.Context, progress func() int, step func() error) error {
	reached, wait, left := progress(), firstPause, stepRetries
	for {
		err := step()
		if err == nil || ctx.Err() != nil || !mayPass(err) {
			return err
		}
		if now := progress(); now > reached {
			reached, wait, left = now, firstPause, stepRetries
		}
		if left == 0 {
			return err
		}
		r.Pause(ctx, wait)
		wait, left = 2*wait, left-1
	}
}

// given is an error of what a list was given to, which has tried it again itself.
type given struct{ error }

// Unwrap returns the error.
func (g given) Unwrap() error { return g.error }

// mayPass reports whether an error may be one of a moment: the database or the provider did not
// answer, or the provider was asked too much.
func mayPass(err error) bool {
	var final given
	var answer *subscription.APIError
	var network net.Error
	switch {
	case errors.As(err, &final):
		return false
	case errors.As(err, &answer):
		return answer.Status == http.StatusTooManyRequests || answer.Status >= http.StatusInternalServerError
	}
	return errors.Is(err, tenants.ErrUnavailable) || errors.Is(err, subscription.ErrUnreadable) || errors.As(err, &network)
}
