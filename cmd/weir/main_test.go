package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A shell runs the command with its own environment.
type shell struct {
	t   *testing.T
	env map[string]string
}

// run returns what the command prints, and its exit code.
func (s *shell) run(input string, args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	var out, err bytes.Buffer
	t := &terminal{in: strings.NewReader(input), out: &out, err: &err, getenv: func(name string) string { return s.env[name] }}
	code = run(s.t.Context(), t, args)
	return out.String(), err.String(), code
}

func TestCommandLine(t *testing.T) {
	s := &shell{t: t, env: map[string]string{}}
	for _, wrong := range [][]string{{}, {"chek"}, {"check"}, {"-o", "xml", "rules"}, {"check", "a", "--cost", "many"}} {
		_, stderr, code := s.run("", wrong...)
		require.Equal(t, 2, code, wrong)
		require.Contains(t, stderr, "weir: ", wrong)
	}
	stdout, _, code := s.run("", "--help")
	require.Zero(t, code)
	for _, command := range []string{"login", "check", "explain", "rules", "plans", "subjects", "keys", "config pull", "config diff", "config push", "gateway", "usage", "audit", "simulate", "replay", "tail", "top", "completion"} {
		require.Contains(t, stdout, command)
	}
	for name, env := range map[string]map[string]string{
		"half a server":  {"WEIR_URL": "http://localhost:1"},
		"no home":        {},
		"no address":     {"WEIR_URL": "localhost:8080", "WEIR_KEY": "weir_key"},
		"no key":         {"WEIR_URL": "ftp://localhost", "WEIR_KEY": "weir_key"},
		"nobody listens": {"WEIR_URL": "http://127.0.0.1:1", "WEIR_KEY": "weir_key"},
	} {
		s.env = env
		_, stderr, code := s.run("", "rules")
		require.Equal(t, 1, code, name)
		require.NotContains(t, stderr, "weir_key", name)
	}
	_, stderr, code := s.run("", "gateway", "toaster")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "nginx")
	s.env = map[string]string{"HOME": t.TempDir()}
	_, _, code = s.run("", "login", "localhost")
	require.Equal(t, 1, code)
	_, stderr, code = s.run("", "login", "--with-key", "http://localhost:1")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "the key is empty")
}

// A table shows a name as text, without its control characters.
func TestTablesAreSafe(t *testing.T) {
	var out bytes.Buffer
	shown := &terminal{out: &out, output: "table"}
	require.NoError(t, shown.print([]json.RawMessage{[]byte(`{"a": "x\u001b[2Jy\nz", "b": 1000000000000000, "c": ["d", "e"], "f": {"g": 1}}`)}, "a", "b", "c", "f", "h"))
	require.Equal(t, "A         B                 C    F        H\nx\ufffd[2Jy\ufffdz  1000000000000000  d e  {\"g\":1}  -\n", out.String())
}

// A table that is wider than the terminal is printed as lines that fit, and nothing is cut.
func TestTablesOnANarrowTerminal(t *testing.T) {
	objects := []json.RawMessage{[]byte(`{"rule": "api-requests", "retry_after_ms": 1250}`), []byte(`{"rule": "exports"}`)}
	for width, want := range map[int]string{
		0:  "RULE          RETRY AFTER MS\napi-requests  1250\nexports       -\n",
		28: "RULE          RETRY AFTER MS\napi-requests  1250\nexports       -\n",
		27: "RULE            api-requests\nRETRY AFTER MS  1250\n\nRULE            exports\nRETRY AFTER MS  -\n",
	} {
		var out bytes.Buffer
		shown := &terminal{out: &out, output: "table", columns: func() int { return width }}
		require.NoError(t, shown.print(objects, "rule", "retry_after_ms"))
		require.Equal(t, want, out.String(), width)
	}
}
