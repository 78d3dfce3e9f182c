package api

import (
	"syscall"
	"time"
)

// threadTime returns the CPU time that the calling thread has used.
func threadTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &used); err != nil {
		panic(err) // only for invalid arguments
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
