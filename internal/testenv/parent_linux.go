package testenv

import (
	"os/exec"
	"syscall"
)

// EndWithParent makes the kernel kill the command if this process dies without a cleanup, for
// example after a panic or a test timeout.
func EndWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
