package kernel

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const status = "Name:\tserver\nVmPeak:\t  999999 kB\nVmSize:\t  888888 kB\nVmHWM:\t   12345 kB\nVmRSS:\t   11111 kB\nThreads:\t8\n"

func TestStatusBytesFindsTheField(t *testing.T) {
	n, err := statusBytes([]byte(status), "VmHWM")
	require.NoError(t, err)
	require.EqualValues(t, 12345*1024, n)
}

func TestStatusBytesNamesMissingField(t *testing.T) {
	for _, name := range []string{"VmSwap", "Threads", "Name", "VmH"} {
		_, err := statusBytes([]byte(status), name)
		require.Error(t, err, name)
	}
}

func TestCPUNameIsFirstProcessor(t *testing.T) {
	info := "processor\t: 0\nvendor_id\t: X\nmodel name\t: Some  CPU @ 2.00GHz\n\nprocessor\t: 1\nmodel name\t: Other\n"
	require.Equal(t, "Some CPU @ 2.00GHz", cpuName([]byte(info)))
	require.Empty(t, cpuName([]byte("processor\t: 0\n")))
}

// The clock of another process shows the same time as the kernel reports after its end.
func TestCPUOfOtherProcess(t *testing.T) {
	cmd := exec.Command("sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo; read x")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = stdout.Read(make([]byte, 1)) // it has used CPU time, and waits now
	require.NoError(t, err)

	used, err := CPU(cmd.Process.Pid)
	require.NoError(t, err)
	require.NoError(t, stdin.Close())
	_ = cmd.Wait() // its read returned EOF, so its exit code is 1
	all := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	require.InDelta(t, all, used, float64(20*time.Millisecond))
	require.Positive(t, used)

	_, err = CPU(cmd.Process.Pid)
	require.Error(t, err, "the process has ended")
}

func TestResetPeakMemory(t *testing.T) {
	const size = 64 << 20
	block, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	for i := 0; i < size; i += 4096 {
		block[i] = 1
	}
	require.NoError(t, syscall.Munmap(block))
	held, err := PeakMemory(os.Getpid())
	require.NoError(t, err)
	require.Greater(t, held, int64(size), "freed memory still counts")

	require.NoError(t, ResetPeakMemory(os.Getpid()))
	reset, err := PeakMemory(os.Getpid())
	require.NoError(t, err)
	require.Less(t, reset, held-size/2)
}
