package main

import "golang.org/x/sys/unix"

// openFiles returns how many files the process may open; 0: unknown.
func openFiles() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return 0
	}
	return int(min(l.Cur, 1<<30))
}
