package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// Instance is a server process.
type Instance struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	Out  Buffer        // its standard output

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at each line
	lines     []string      // its standard error
	addresses map[string]string
}

// Start starts a server process and returns without waiting. The process is stopped after the test.
func Start(t testing.TB, s Settings, args ...string) *Instance {
	t.Helper()
	return StartProgram(t, Server(t), s, args...)
}

// StartProgram is Start with another program than Server, such as that of an older commit.
func StartProgram(t testing.TB, program string, s Settings, args ...string) *Instance {
	t.Helper()
	i := &Instance{t: t, cmd: exec.Command(program, args...), done: make(chan struct{}),
		changed: make(chan struct{}), addresses: map[string]string{}}
	i.cmd.Env = s.Environ()
	testenv.EndWithParent(i.cmd)
	i.cmd.Stdout = &i.Out
	stderr, err := i.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, i.cmd.Start())
	go func() {
		defer close(i.done)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			i.heard(lines.Text())
		}
		_ = i.cmd.Wait() // tests read the state
		i.heard("(process ended)")
	}()
	t.Cleanup(func() {
		i.Kill()
		if t.Failed() {
			t.Logf("log of the server:\n%s", i.news())
		}
	})
	return i
}

func (i *Instance) heard(line string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.lines = append(i.lines, line)
	var entry struct{ Msg, Variable, Address string }
	if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" {
		i.addresses[entry.Variable] = entry.Address
	}
	close(i.changed)
	i.changed = make(chan struct{})
}

func (i *Instance) Log() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return strings.Join(i.lines, "\n")
}

// shownLines is how many lines of a server's log a failed test prints.
const shownLines = 60

// news returns the end of the log without requests that were answered as they should be: those of
// other tests would hide the error that matters.
func (i *Instance) news() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	var shown []string
	for _, line := range i.lines {
		var entry struct {
			Msg    string
			Status int
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "request" && entry.Status < http.StatusInternalServerError {
			continue
		}
		shown = append(shown, line)
	}
	if len(shown) > shownLines {
		shown = append([]string{fmt.Sprintf("(%d lines before)", len(shown)-shownLines)}, shown[len(shown)-shownLines:]...)
	}
	return strings.Join(shown, "\n")
}

// await returns when holds returns true. It is called after each line that the server writes.
func (i *Instance) await(what string, holds func() bool) {
	i.t.Helper()
	timeout := time.NewTimer(Patience)
	defer timeout.Stop()
	for {
		i.mu.Lock()
		changed := i.changed
		ok := holds()
		i.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-i.done:
			i.mu.Lock()
			ok := holds()
			i.mu.Unlock()
			require.True(i.t, ok, "the server ended before %s", what)
			return
		case <-timeout.C:
			require.Fail(i.t, "not in time: "+what)
		}
	}
}

// AwaitLog returns when the server has written a line that contains text.
func (i *Instance) AwaitLog(text string) {
	i.t.Helper()
	i.await("a line with "+text, func() bool {
		for _, line := range i.lines {
			if strings.Contains(line, text) {
				return true
			}
		}
		return false
	})
}

// Address returns the address of the listener of this variable.
func (i *Instance) Address(variable string) string {
	i.t.Helper()
	i.await("listening by "+variable, func() bool { return i.addresses[variable] != "" })
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.addresses[variable]
}

func (i *Instance) URL() string         { return "http://" + i.Address("WEIR_HTTP_ADDR") }
func (i *Instance) HTTPSURL() string    { return "https://" + i.Address("WEIR_HTTPS_ADDR") }
func (i *Instance) InternalURL() string { return "http://" + i.Address("WEIR_INTERNAL_ADDR") }

// AwaitReady returns when /readyz reports that the instance is ready.
func (i *Instance) AwaitReady() *Instance {
	i.t.Helper()
	readyz := i.URL() + "/readyz"
	require.Eventually(i.t, func() bool {
		return Status(readyz) == http.StatusOK
	}, Patience, Tick, "the server is not ready")
	return i
}

// Metrics returns the response of /metrics.
func (i *Instance) Metrics() string {
	i.t.Helper()
	response, err := http.Get(i.InternalURL() + "/metrics")
	require.NoError(i.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(i.t, err)
	require.Equal(i.t, http.StatusOK, response.StatusCode)
	return string(body)
}

// Status requests a URL over a new connection and returns the status, or 0 without a response.
func Status(url string) int {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: Patience}
	response, err := client.Get(url)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}

func (i *Instance) Signal(s os.Signal) {
	i.t.Helper()
	require.NoError(i.t, i.cmd.Process.Signal(s))
}

// Pid returns the id of the process.
func (i *Instance) Pid() int { return i.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended for any reason.
func (i *Instance) Done() <-chan struct{} { return i.done }

// Kill ends the process with SIGKILL, unless it has ended.
func (i *Instance) Kill() {
	_ = i.cmd.Process.Kill() // fails if the process has ended
	<-i.done
}

// Stop ends the server with SIGTERM and returns its exit code.
func (i *Instance) Stop() int {
	i.t.Helper()
	i.Signal(syscall.SIGTERM)
	return i.Exit()
}

// Exit waits for the end of the process and returns its exit code, or -1 after a signal.
func (i *Instance) Exit() int {
	i.t.Helper()
	select {
	case <-i.done:
	case <-time.After(Patience):
		require.Fail(i.t, "the server does not end")
	}
	return i.cmd.ProcessState.ExitCode()
}

// Run runs a command of the server and waits for its end.
func Run(t testing.TB, s Settings, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return RunProgram(t, Server(t), s, args...)
}

// RunProgram is Run with another program than Server.
func RunProgram(t testing.TB, program string, s Settings, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = s.Environ()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(t, err, &exit)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// Help returns the output of `server --help`.
func Help(t testing.TB) string {
	t.Helper()
	stdout, stderr, code := Run(t, nil, "--help")
	require.Zero(t, code, stderr)
	return stdout
}

// Buffer is a buffer that a process can write while a test reads it.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
