//go:build !linux

package testenv

import "os/exec"

// EndWithParent does nothing, because this kernel has no such feature.
func EndWithParent(*exec.Cmd) {}
