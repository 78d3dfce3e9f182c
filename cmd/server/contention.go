package main

import "runtime"

// Sampling rates of contention with WEIR_PROFILE_CONTENTION: enough to see where goroutines wait,
// at a few percent of the CPU time.
const (
	mutexFraction = 10     // one of this many contentions is recorded
	blockRate     = 10_000 // one event is recorded for this many nanoseconds of waiting
)

// profileContention turns on the profiles mutex and block of the internal address.
func profileContention() {
	runtime.SetMutexProfileFraction(mutexFraction)
	runtime.SetBlockProfileRate(blockRate)
}
