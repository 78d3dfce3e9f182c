package gateways

import "syscall"

// endWithParent makes the kernel end the gateway when the test process dies without cleaning up.
// SIGTERM, because a gateway that gets it also ends its workers.
func endWithParent(attributes *syscall.SysProcAttr) { attributes.Pdeathsig = syscall.SIGTERM }
