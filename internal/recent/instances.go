package recent

import (
	"cmp"
	"context"
	"slices"
	"time"

	"weir/internal/check"
)

// Instance is the state of one instance, as it reports itself.
type Instance struct {
	// Name is the name of the machine, Version that of the program. StartedAt is by the machine's
	// clock.
	Name, Version string
	StartedAt     time.Time
	Latency       check.Latency
	DegradedSince time.Time // when the circuit breaker opened; zero: it is closed
	Failure       string    // class of the last failure of Redis; "": there was none
	// ConfigAge is the time since the configuration was last verified to be current; negative:
	// never.
	ConfigAge time.Duration
	This      bool `json:"-"` // the instance that was asked
}

// Instances returns the state of the instances that answer in time, by name, and the number of live
// instances, including this one. It never fails: without Redis, it returns this instance.
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
