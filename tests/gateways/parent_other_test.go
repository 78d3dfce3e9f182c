//go:build !linux

package gateways

import "syscall"

// endWithParent does nothing on systems without such a signal.
func endWithParent(*syscall.SysProcAttr) {}
