package gateways

import "syscall"

// endWithParent makes the kernel end the gateway if the test process dies without a cleanup. The
// signal is SIGTERM, because a gateway then also ends its workers.
func endWithParent(attributes *syscall.SysProcAttr) { attributes.Pdeathsig = syscall.SIGTERM }
