package tests

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
	"weir/tests/harness"
)

// checkout creates a checkout with only scripts/dev.sh in it, and thus with its own servers.
func checkout(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	script, err := os.ReadFile(filepath.Join(testenv.Root(), "scripts", "dev.sh"))
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(root, "scripts"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "scripts", "dev.sh"), script, 0o755))
	t.Cleanup(func() {
		out, code := dev(t, root, "reset")
		require.Zero(t, code, out)
	})
	return root
}

func devCommand(ctx context.Context, root string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(root, "scripts", "dev.sh"), args...)
	cmd.Env = append(settings{}.Environ(), "WEIR_DEV_BACKEND=native")
	cmd.WaitDelay = patience
	return cmd
}

func dev(t *testing.T, root string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := devCommand(ctx, root, args...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(t, err, &exit, "%s", out)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// `make run` keeps its data, and leaves no process running.
func TestDevServersKeepDataAndStop(t *testing.T) {
	root := checkout(t)
	out, code := dev(t, root, "with", "sh", "-c", `echo "$WEIR_DATABASE_URL $WEIR_REDIS_URL"; exit 7`)
	require.Equal(t, 7, code, "the command's own exit code: %s", out)
	require.Contains(t, out, "postgres://weir:")
	require.Contains(t, out, "redis://default:")

	out, code = dev(t, root, "status")
	require.Zero(t, code)
	require.Contains(t, out, "postgres: stopped")
	require.Contains(t, out, "redis: stopped")

	// The same cluster and the same addresses.
	before, _ := os.ReadFile(filepath.Join(root, ".dev", "env"))
	_, code = dev(t, root, "with", "true")
	require.Zero(t, code)
	after, err := os.ReadFile(filepath.Join(root, ".dev", "env"))
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
	require.DirExists(t, filepath.Join(root, ".dev", "redis", "appendonlydir"))

	out, code = dev(t, root, "reset")
	require.Zero(t, code, out)
	require.NoDirExists(t, filepath.Join(root, ".dev"))
}

// Ctrl-C reaches every process of the terminal, `kill` only one. In both cases all processes end,
// and the command gets the signal once.
func TestDevForwardsSignals(t *testing.T) {
	root := checkout(t)
	for _, c := range []struct {
		signal syscall.Signal
		group  bool
	}{{syscall.SIGINT, true}, {syscall.SIGTERM, false}, {syscall.SIGINT, false}} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		cmd := devCommand(ctx, root, "with", "sh", "-c", `trap "echo got INT; exit 0" INT; trap "echo got TERM; exit 0" TERM; echo started; while :; do sleep 0.05; done`)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		var out harness.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		require.NoError(t, cmd.Start())
		require.Eventually(t, func() bool { return strings.Contains(out.String(), "started") }, patience, tick)
		pid := cmd.Process.Pid
		if c.group {
			pid = -pid
		}
		require.NoError(t, syscall.Kill(pid, c.signal))
		require.NoError(t, cmd.Wait(), out.String())
		require.Equal(t, 1, strings.Count(out.String(), "got"), out.String())
		cancel()
		status, _ := dev(t, root, "status")
		require.Equal(t, 2, strings.Count(status, "stopped"), status)
	}
}

// Tests cannot change the data of `make run`.
func TestDevServersForTestsAreSeparate(t *testing.T) {
	root := checkout(t)
	out, code := dev(t, root, "--test", "with", "sh", "-c", `echo "$WEIR_DATABASE_URL$WEIR_REDIS_URL|$WEIR_TEST_REDIS_URL"`)
	require.Zero(t, code, out)
	require.Regexp(t, `(?m)^\|redis://`, out)
	require.NoFileExists(t, filepath.Join(root, ".dev", "env"))
	require.FileExists(t, filepath.Join(root, ".dev", "test", "env"))
}

// Servers that are configured are used, and none are started.
func TestDevUsesGivenServers(t *testing.T) {
	root := checkout(t)
	cmd := devCommand(t.Context(), root, "with", "sh", "-c", `echo "$WEIR_DATABASE_URL $WEIR_REDIS_URL"`)
	cmd.Env = append(cmd.Env, "WEIR_DATABASE_URL=postgres://mine", "WEIR_REDIS_URL=redis://mine")
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, "postgres://mine redis://mine\n", string(out))
	require.NoDirExists(t, filepath.Join(root, ".dev"))

	cmd = devCommand(t.Context(), root, "with", "true")
	cmd.Env = append(cmd.Env, "WEIR_DATABASE_URL=postgres://mine")
	message, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(message), "WEIR_REDIS_URL")
}

// The tests of pages need a browser. A machine that cannot install one gets an error that says so.
func TestDevFindsABrowser(t *testing.T) {
	root, bin := checkout(t), t.TempDir()
	for _, name := range []string{"bash", "dirname", "cksum", "cut", "mkdir", "chmod", "flock", "id", "rm", "cat", "curl"} {
		program, err := exec.LookPath(name)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(program, filepath.Join(bin, name)))
	}
	browser := func(variables ...string) (string, error) {
		cmd := devCommand(t.Context(), root, "browser")
		cmd.Env = append(append(cmd.Env, "PATH="+bin), variables...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := browser()
	require.Error(t, err)
	require.Contains(t, out, "missing: chromium-headless-shell (or set WEIR_TEST_CHROMIUM to a Chromium or Chrome)")

	mine := filepath.Join(t.TempDir(), "my-chromium")
	require.NoError(t, os.WriteFile(mine, []byte("#!/bin/sh\n"), 0o755))
	out, err = browser("WEIR_TEST_CHROMIUM=" + mine)
	require.NoError(t, err, out)
	require.NoError(t, os.Symlink(mine, filepath.Join(bin, "google-chrome")))
	out, err = browser()
	require.NoError(t, err, out)
}
