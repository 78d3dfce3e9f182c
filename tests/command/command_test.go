// Package command tests the command weir against a real server.
package command

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/docs/gateways"
	"weir/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// A shell runs the command with its own environment.
type shell struct {
	t       *testing.T
	program string
	env     map[string]string
}

func newShell(t *testing.T) *shell {
	t.Helper()
	return &shell{t: t, program: harness.Program(t, "", "./cmd/weir"), env: map[string]string{"XDG_CONFIG_HOME": t.TempDir()}}
}

// run returns what the command prints, and its exit code.
func (s *shell) run(input string, args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	var out, errors bytes.Buffer
	cmd := exec.CommandContext(s.t.Context(), s.program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = strings.NewReader(input), &out, &errors, []string{}
	for name, value := range s.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	err := cmd.Run()
	if cmd.ProcessState == nil {
		require.NoError(s.t, err)
	}
	return out.String(), errors.String(), cmd.ProcessState.ExitCode()
}

// must runs a command that must succeed, and returns its output.
func (s *shell) must(args ...string) string {
	s.t.Helper()
	stdout, stderr, code := s.run("", args...)
	require.Zero(s.t, code, stderr)
	return stdout
}

// installation starts a server with one tenant, and returns its address and a key with all scopes.
func installation(t *testing.T) (url, key string) {
	t.Helper()
	settings := harness.NewSettings(t)
	instance := harness.Start(t, settings).AwaitReady()
	stdout, stderr, code := harness.Run(t, settings, "operator-key", "create", "command")
	require.Zero(t, code, stderr)
	r, err := http.NewRequest(http.MethodPost, instance.URL()+"/v1/tenants", strings.NewReader(`{"slug":"acme","name":"Acme"}`))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(stdout))
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	var tenant struct {
		Key struct{ Secret string }
	}
	require.NoError(t, json.NewDecoder(response.Body).Decode(&tenant))
	require.NotEmpty(t, tenant.Key.Secret)
	return instance.URL(), tenant.Key.Secret
}

const document = `rules:
  - slug: api
    resource: api
    algorithm: fixed_window_first_hit
    limit: 2
    window: 1h
plans:
  - slug: pro
    name: Pro
subjects:
  - subject: user_42
    plan: pro
`

// All steps use one installation, in the order in which a user would run them.
func TestCommands(t *testing.T) {
	url, key := installation(t)
	s := newShell(t)

	// Before the login, no server is configured.
	_, stderr, code := s.run("", "rules")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "weir login")

	_, stderr, code = s.run("weir_nonsense\n", "login", "--with-key", url)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "MALFORMED_KEY")
	_, stderr, code = s.run(key+"\n", "login", "--with-key", url+"/")
	require.Zero(t, code, stderr)
	require.NotContains(t, stderr, key)
	stored := filepath.Join(s.env["XDG_CONFIG_HOME"], "weir", "login.json")
	info, err := os.Stat(stored)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())

	file := filepath.Join(t.TempDir(), "weir.yaml")
	require.NoError(t, os.WriteFile(file, []byte(document), 0o600))
	configuration(t, s, file)
	lists(t, s)
	checks(t, s)
	history(t, s)
	decisions(t, s)

	nginx := s.must("gateway", "nginx")
	require.Contains(t, nginx, "proxy_set_header Weir-Key "+key+";")
	require.Contains(t, nginx, "server "+strings.TrimPrefix(url, "http://")+";")
	require.NotContains(t, nginx, gateways.Key)
	s.env["WEIR_URL"], s.env["WEIR_KEY"] = "https://weir.acme.test", "weir_key_1"
	caddy := s.must("gateway", "caddy", "--ca", "/etc/weir/ca.pem")
	require.Contains(t, caddy, "reverse_proxy weir.acme.test:443 {")
	require.Contains(t, caddy, "tls_trusted_ca_certs /etc/weir/ca.pem")
	_, stderr, code = s.run("", "gateway", "nix")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "nginx-lua")
}

func configuration(t *testing.T, s *shell, file string) {
	stdout, stderr, code := s.run("", "config", "diff", file)
	require.Equal(t, 3, code, stderr)
	require.Contains(t, stdout, "create")
	_, stderr, code = s.run("n\n", "config", "push", file)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "not confirmed")
	_, stderr, code = s.run("", "config", "push", "-")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "--yes")
	_, stderr, code = s.run("y\n", "config", "push", file)
	require.Zero(t, code, stderr)
	require.Contains(t, stderr, "Applied 3 changes")
	require.Equal(t, "no changes\n", s.must("config", "push", file))
	require.Equal(t, "no changes\n", s.must("config", "diff", file))

	pulled := filepath.Join(t.TempDir(), "pulled.json")
	s.must("config", "pull", "--subjects", pulled)
	require.Equal(t, "no changes\n", s.must("config", "diff", pulled), "a pulled document changes nothing")
	require.Contains(t, s.must("config", "pull"), "slug: api")

	require.NoError(t, os.WriteFile(pulled, []byte(`{"rules": []}`), 0o600))
	require.Equal(t, "no changes\n", s.must("config", "diff", pulled))
	stdout, stderr, code = s.run("", "-o", "csv", "config", "diff", "--prune", pulled)
	require.Equal(t, 3, code, stderr)
	require.Contains(t, stdout, "delete,rule,api,")
	require.NoError(t, os.WriteFile(pulled, []byte(`{"rules": [{"slug": "api", "limit": -1, "window": "1h"}]}`), 0o600))
	_, stderr, code = s.run("", "config", "push", "--yes", pulled)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "/rules/0/limit")
}

func lists(t *testing.T, s *shell) {
	table := s.must("rules")
	require.Contains(t, table, "SLUG")
	require.Regexp(t, `(?m)^api +api +fixed_window_first_hit +2 `, table)
	require.Regexp(t, `(?m)^pro,Pro,`, s.must("-o", "csv", "plans"))
	var keys []map[string]any
	require.NoError(t, json.Unmarshal([]byte(s.must("-o", "json", "keys")), &keys))
	require.Len(t, keys, 1)
	require.Contains(t, s.must("subjects", "--plan", "pro", "--prefix", "user"), "user_42")
	require.NotContains(t, s.must("subjects", "--prefix", "nobody"), "user_42")
	require.Equal(t, "[]\n", s.must("-o", "json", "subjects", "--prefix", "nobody"))
}

func checks(t *testing.T, s *shell) {
	// A new rule is in force within a second. explain consumes nothing.
	require.Eventually(t, func() bool {
		stdout, _, code := s.run("", "explain", "user_42", "--resource", "api")
		return code == 0 && strings.Contains(stdout, "api")
	}, harness.Patience, harness.Tick)
	stdout, stderr, code := s.run("", "check", "user_42", "-r", "api", "-c", "2")
	require.Zero(t, code, stderr)
	require.Regexp(t, `(?s)^allowed\nRULE .*api +enforce +true `, stdout)
	stdout, _, code = s.run("", "check", "user_42", "-r", "api")
	require.Equal(t, 3, code)
	require.Contains(t, stdout, "denied: ")
	stdout, _, code = s.run("", "-o", "json", "check", "user_42", "-r", "api", "-p", "pro", "-a", "ip=203.0.113.7")
	require.Equal(t, 3, code)
	var answer struct {
		Allowed bool
		Plan    string
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &answer))
	require.Equal(t, "pro", answer.Plan)
	require.Contains(t, s.must("explain", "user_43", "-r", "elsewhere"), "resource_mismatch")
	require.Contains(t, s.must("-o", "csv", "explain", "user_43", "-r", "elsewhere"), ",resource_mismatch,")
	_, stderr, code = s.run("", "check", "user_42", "-p", "platinum")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "/plan")
}

func history(t *testing.T, s *shell) {
	audit := s.must("-o", "csv", "audit", "--kind", "rule", "-n", "1")
	require.Contains(t, audit, ",create,rule,api,")
	require.Equal(t, 2, strings.Count(audit, "\n"))
	require.Contains(t, s.must("usage", "--grain", "minute", "-g", "rule"), "START  ")
	_, stderr, code := s.run("", "usage", "--from", "yesterday")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "from")

	stdout, stderr, code := s.run(`{"rules": [{"slug": "a", "limit": 1, "window": "1m"}], "requests": [{"at_ms": 0, "subject": "x"}, {"at_ms": 1, "subject": "x"}]}`, "simulate", "-")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "2 requests: 1 allowed, 1 denied")

	line := `192.0.2.7 - alice [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.1" 200 1 "-" "-"` + "\n"
	stdout, stderr, code = s.run(strings.Repeat(line, 3), "replay", "--subject", "user", "--resource", "api", "-")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "2 allowed, 1 denied", "the rules of the server allow 2 per hour")
}

// tail prints what was decided before, and what is decided while it runs.
func decisions(t *testing.T, s *shell) {
	require.Regexp(t, `(?m)^\d\d:\d\d:\d\d\.\d{3} DENY  user_42  api  api 0/2 left  retry in `, s.must("tail", "-n", "300", "--denied", "--for", "2s"))
	for _, line := range strings.Split(strings.TrimSpace(s.must("-o", "json", "tail", "-n", "2", "--subject", "user_42", "--for", "2s")), "\n") {
		var d struct{ Subject string }
		require.NoError(t, json.Unmarshal([]byte(line), &d), line)
		require.Equal(t, "user_42", d.Subject)
	}
	require.Empty(t, s.must("tail", "--subject", "nobody", "--for", "1s"))

	// The usage of a check is written within a second.
	require.Eventually(t, func() bool { return strings.Contains(s.must("top"), "user_42") }, harness.Patience, harness.Tick)

	cmd := exec.CommandContext(t.Context(), s.program, "tail", "-n", "0", "--prefix", "live_")
	for name, value := range s.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := make(chan string, 100)
	go func() {
		for scan := bufio.NewScanner(out); scan.Scan(); {
			lines <- scan.Text()
		}
		close(lines)
	}()
	// Checks before the stream is open are not in it.
	require.Eventually(t, func() bool {
		s.run("", "check", "live_1", "-r", "elsewhere")
		select {
		case line := <-lines:
			require.Contains(t, line, " allow live_1  elsewhere")
			return true
		default:
			return false
		}
	}, harness.Patience, harness.Tick)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	for range lines {
	}
	require.NoError(t, cmd.Wait(), "the exit code is 0 after Ctrl-C")
}
