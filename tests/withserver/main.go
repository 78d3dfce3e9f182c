// Command withserver runs a command together with a real Weir server and its own installation, and
// returns its exit code. The tests of the clients in all languages use it:
//
//	scripts/dev.sh --test with go run ./tests/withserver CMD...
//
// CMD finds in its environment WEIR_TEST_URL, WEIR_TEST_KEY (a key of a tenant without rules, with
// all scopes), WEIR_TEST_OPERATOR_KEY and WEIR_TEST_PIDFILE, a file with the process id of the
// server. CMD may pause or kill that process: a server that was killed is started again at the same
// address.
package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: withserver CMD...")
		os.Exit(2)
	}
	os.Exit(harness.Outside(func(t testing.TB) int { return run(t, os.Args[1:]) }))
}

func run(t testing.TB, command []string) int {
	dir, err := os.MkdirTemp("", "weir-withserver-")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	settings := harness.NewSettings(t).With(harness.Settings{"WEIR_ENCRYPTION_KEY": base64.StdEncoding.EncodeToString(make([]byte, 32))})
	server := harness.Start(t, settings).AwaitReady()
	settings["WEIR_HTTP_ADDR"] = server.Address("WEIR_HTTP_ADDR")
	k := &keeper{t: t, settings: settings, pidFile: filepath.Join(dir, "pid"), ending: make(chan struct{}), server: server}
	k.writePid()
	var keeping sync.WaitGroup
	keeping.Go(k.keep)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	operator := newOperatorKey(t, settings)
	cmd.Env = append(os.Environ(), "WEIR_TEST_URL="+server.URL(), "WEIR_TEST_KEY="+newTenant(t, operator, server.URL()),
		"WEIR_TEST_OPERATOR_KEY="+operator, "WEIR_TEST_PIDFILE="+k.pidFile)
	err = cmd.Run()
	close(k.ending)
	keeping.Wait()
	if err != nil {
		fmt.Fprintf(os.Stderr, "withserver: %s: %v\n", strings.Join(command, " "), err)
	}
	return cmd.ProcessState.ExitCode()
}

// A keeper restarts the server after it has ended.
type keeper struct {
	t        testing.TB
	settings harness.Settings
	pidFile  string
	ending   chan struct{} // closed when the command has ended
	server   *harness.Instance
}

func (k *keeper) keep() {
	for {
		select {
		case <-k.ending:
			return
		case <-k.server.Done():
			k.server = harness.Start(k.t, k.settings).AwaitReady()
			k.writePid()
		}
	}
}

// writePid replaces the file atomically, so that no reader sees a partial number.
func (k *keeper) writePid() {
	temporary := k.pidFile + ".new"
	require.NoError(k.t, os.WriteFile(temporary, []byte(strconv.Itoa(k.server.Pid())), 0o600))
	require.NoError(k.t, os.Rename(temporary, k.pidFile))
}

func newOperatorKey(t testing.TB, s harness.Settings) string {
	stdout, stderr, code := harness.Run(t, s, "operator-key", "create", "clients")
	require.Zero(t, code, stderr)
	return strings.TrimSpace(stdout)
}

// newTenant creates a tenant and returns its first key.
func newTenant(t testing.TB, operator, url string) string {
	r, err := http.NewRequest(http.MethodPost, url+"/v1/tenants", strings.NewReader(`{"slug":"clients","name":"Clients"}`))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+operator)
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	var tenant struct {
		Key struct{ Secret string }
	}
	require.NoError(t, json.NewDecoder(response.Body).Decode(&tenant))
	require.NotEmpty(t, tenant.Key.Secret, "status %d", response.StatusCode)
	return tenant.Key.Secret
}
