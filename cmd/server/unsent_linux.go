package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// maxUnsent is how much of its answers the kernel holds for a client that does not read them: a
// write waits once so much was not sent. Without it, each connection of such a client takes
// megabytes of the kernel's memory, and the time to copy them. What was sent and not confirmed does
// not count, so answers to clients that read are as fast as before.
const maxUnsent = 128 << 10

// limitUnsent sets maxUnsent for all connections of a listener.
func limitUnsent(_, _ string, c syscall.RawConn) error {
	var err error
	controlErr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
	})
	if controlErr != nil {
		return controlErr
	}
	return err
}
