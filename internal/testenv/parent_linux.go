package testenv

import (
	"os/exec"
	"syscall"
)

// endWithParent makes the kernel kill the command when this process dies without cleaning up,
// as after a panic or a test time-out.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
