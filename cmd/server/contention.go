package main

import "runtime"

// What the runtime notes of contention where WEIR_PROFILE_CONTENTION asks for it: enough to see
// where goroutines wait, at a few percent of the CPU time.
const (
	mutexFraction = 10     // one contention for a lock in so many
	blockRate     = 10_000 // nanoseconds of waiting for each of which one event is noted
)

// profileContention has the profiles mutex and block of the internal address show something.
func profileContention() {
	runtime.SetMutexProfileFraction(mutexFraction)
	runtime.SetBlockProfileRate(blockRate)
}
