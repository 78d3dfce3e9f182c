//go:build race

package engine_test

// A run is on one goroutine, and the race detector makes its arithmetic five times slower. `make
// test` runs all of them without it.
const leasedRuns = 4
