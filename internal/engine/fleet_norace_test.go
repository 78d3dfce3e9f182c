//go:build !race

package engine_test

const leasedRuns = 20
