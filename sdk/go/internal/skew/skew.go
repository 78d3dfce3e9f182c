// Package skew moves the clock of a client away from that of its machine, as if the clocks of
// machines were apart. It is for programs of tests in this module: no other module can import it.
package skew

import "time"

// Clock is by how much the clock of all clients of this process is ahead. It is set before the
// first client is created.
var Clock time.Duration
