package recent

import (
	"cmp"
	"context"
	"slices"
	"time"

	"weir/internal/check"
)

// Instance is how one instance of the service is, by what it says itself.
type Instance struct {
	// Name is the machine's, Version the program's; StartedAt is by the machine's clock.
	Name, Version string
	StartedAt     time.Time
	Latency       check.Latency
	DegradedSince time.Time // since when the circuit breaker is open; zero: it is closed
	// ConfigAge is how long ago the configuration was last found to be what the database says;
	// negative: never.
	ConfigAge time.Duration
	This      bool `json:"-"` // the one that was asked
}

// Instances returns how the instances are that answer soon, by name, and how many are known to
// be alive, this one included. It never fails: without Redis there is this one.
func (r *Log) Instances(ctx context.Context) (list []Instance, known int) {
	got := r.gather(ctx, recentRequest{Instances: true})
	this := r.self()
	this.This = true
	list = append(got.instances, this)
	slices.SortFunc(list, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), a.StartedAt.Compare(b.StartedAt))
	})
	return list, got.Instances
}
