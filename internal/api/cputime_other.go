//go:build !linux

package api

import "time"

var started = time.Now()

// threadTime returns the elapsed time, which is at least the CPU time of a thread.
func threadTime() time.Duration { return time.Since(started) }
