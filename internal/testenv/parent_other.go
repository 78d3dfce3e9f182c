//go:build !linux

package testenv

import "os/exec"

// endWithParent does nothing where the kernel offers no such thing.
func endWithParent(*exec.Cmd) {}
