// Package kernel reads the CPU time and the memory of other processes from the kernel. It is for
// Linux.
package kernel

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPU returns the CPU time of all threads of the process, in user mode and in the kernel. Unlike
// /proc/PID/stat, which counts ticks of 10 ms, it is exact.
func CPU(pid int) (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(cpuClock(pid), &ts); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// cpuClock is clock_getcpuclockid(3): the number of the clock that measures the CPU time of all
// threads of a process.
func cpuClock(pid int) int32 {
	const scheduler = 2
	return int32(^pid<<3 | scheduler)
}

// PeakMemory returns the maximum resident memory of the process, in bytes, since it started or
// since ResetPeakMemory.
func PeakMemory(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return statusBytes(status, "VmHWM")
}

// ResetPeakMemory resets PeakMemory to the current memory of the process.
func ResetPeakMemory(pid int) error {
	const peak = "5" // proc_pid_clear_refs(5)
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte(peak), 0)
}

// statusBytes returns a field of /proc/PID/status with a size.
func statusBytes(status []byte, name string) (int64, error) {
	for lines := bufio.NewScanner(bytes.NewReader(status)); lines.Scan(); {
		field, value, _ := strings.Cut(lines.Text(), ":")
		if field != name {
			continue
		}
		number, unit, _ := strings.Cut(strings.TrimSpace(value), " ")
		kilobytes, err := strconv.ParseInt(number, 10, 64)
		if err != nil || unit != "kB" {
			return 0, fmt.Errorf("%s is %q, not a number of kB", name, value)
		}
		return kilobytes << 10, nil
	}
	return 0, fmt.Errorf("no %s in the status of the process", name)
}

// Machine describes the processor and the kernel of this machine.
func Machine() string {
	processor := "unknown processor"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if name := cpuName(info); name != "" {
			processor = name
		}
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return processor
	}
	return processor + ", Linux " + unix.ByteSliceToString(name.Release[:])
}

func cpuName(info []byte) string {
	for lines := bufio.NewScanner(bytes.NewReader(info)); lines.Scan(); {
		if field, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(field) == "model name" {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return ""
}
