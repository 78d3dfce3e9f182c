package api

import (
	"syscall"
	"time"
)

// threadTime returns the processor time that the calling thread has used so far.
func threadTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &used); err != nil {
		panic(err) // only for arguments that make no sense
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
