//go:build !linux

package api

import "time"

var started = time.Now()

// threadTime returns the time that has passed: no less than the processor time that a thread has
// used.
func threadTime() time.Duration { return time.Since(started) }
