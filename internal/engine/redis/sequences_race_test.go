//go:build race

package redis_test

// The race detector makes the arithmetic of the reference five times slower, and a sequence runs on
// one goroutine. `make test` runs all sequences without it.
const defaultSequences = 500
