package harness

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mattn/go-shellwords"
	"github.com/stretchr/testify/require"
)

// StartDemo runs the same as `make run`, with its files in dir, and returns when it is ready.
func StartDemo(t testing.TB, s Settings, dir string) *Instance {
	t.Helper()
	s = s.With(Settings{"WEIR_HTTPS_ADDR": "127.0.0.1:0", "WEIR_GRPC_ADDR": "127.0.0.1:0", "WEIR_LOG_LEVEL": "info"})
	delete(s, "WEIR_DRAIN")
	i := Start(t, s, "demo", "--serve", "--dir", dir)
	i.AwaitLog(`"ready"`)
	require.Eventually(t, func() bool { return strings.Contains(i.Out.String(), "Ctrl-C") }, Patience, Tick)
	return i
}

// DemoEnv reads demo.env in the same way as a shell.
func DemoEnv(t testing.TB, dir string) map[string]string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "demo.env"))
	require.NoError(t, err)
	assignments, err := shellwords.Parse(string(content))
	require.NoError(t, err)
	env := map[string]string{}
	for _, assignment := range assignments {
		name, value, _ := strings.Cut(assignment, "=")
		env[name] = value
	}
	return env
}
