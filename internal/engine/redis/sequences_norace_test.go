//go:build !race

package redis_test

const defaultSequences = 10_000
