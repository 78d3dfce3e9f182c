//go:build !linux

package main

import "syscall"

// limitUnsent does nothing: only Linux has a limit that connections inherit from their listener.
func limitUnsent(_, _ string, _ syscall.RawConn) error { return nil }
