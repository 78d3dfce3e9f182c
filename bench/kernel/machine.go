package kernel

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"
)

// Clock is the CPU time of the machine, all cores together, since it started. It advances in steps
// of 10 ms.
type Clock struct {
	Busy  time.Duration // processes and kernel
	Steal time.Duration // used by other machines of the hypervisor while this one had work
	Idle  time.Duration
}

// tick is the unit of /proc/stat, the same on all systems that Go supports.
const tick = 10 * time.Millisecond

// ReadClock reads the clock of the machine.
func ReadClock() (Clock, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return Clock{}, err
	}
	return parseClock(stat)
}

// parseClock parses "cpu user nice system idle iowait irq softirq steal ...". The time of guests is
// included in user.
func parseClock(stat []byte) (c Clock, err error) {
	lines := bufio.NewScanner(bytes.NewReader(stat))
	if !lines.Scan() {
		return c, errors.New("/proc/stat is empty")
	}
	fields := strings.Fields(lines.Text())
	if len(fields) < 9 || fields[0] != "cpu" {
		return c, errors.New("/proc/stat does not begin with the time of all cores")
	}
	for i, to := range []*time.Duration{&c.Busy, &c.Busy, &c.Busy, &c.Idle, &c.Idle, &c.Busy, &c.Busy, &c.Steal} {
		ticks, err := strconv.ParseInt(fields[i+1], 10, 64)
		if err != nil {
			return c, err
		}
		*to += time.Duration(ticks) * tick
	}
	return c, nil
}

// Since returns the time since an earlier reading.
func (c Clock) Since(earlier Clock) Clock {
	return Clock{Busy: c.Busy - earlier.Busy, Steal: c.Steal - earlier.Steal, Idle: c.Idle - earlier.Idle}
}

// All returns the time of all cores, busy or idle.
func (c Clock) All() time.Duration { return c.Busy + c.Steal + c.Idle }

// Load returns the load average of the last minute: the number of processes that ran or waited to
// run.
func Load() (float64, error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	return strconv.ParseFloat(first, 64)
}
