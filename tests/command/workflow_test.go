package command

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"weir/internal/testenv"
)

// A workflow has the parts of docs/ci/weir-config.yml that the test runs.
type workflow struct {
	Jobs map[string]struct {
		Outputs map[string]string
		Steps   []struct {
			ID, Name, Uses, Run string
			Env                 map[string]string
		}
	}
}

// A runner runs the steps of a workflow in a checkout, as GitHub does.
type runner struct {
	t        *testing.T
	workflow workflow
	checkout string
	env      []string
	values   map[string]string // of expressions
}

func (r *runner) git(args ...string) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "git", append([]string{"-C", r.checkout, "-c", "user.name=test", "-c", "user.email=test@example.com"}, args...)...)
	output, err := cmd.CombinedOutput()
	require.NoError(r.t, err, string(output))
}

// job runs the steps of a job in a fresh checkout, until one fails. It returns what they print, the
// summary and the exit code of the last step.
func (r *runner) job(name string) (output, summary string, code int) {
	r.t.Helper()
	temp, checkout := r.t.TempDir(), filepath.Join(r.t.TempDir(), "checkout")
	r.git("clone", "-q", r.checkout, checkout)
	file := func(name string) string { return filepath.Join(temp, name) }
	path := "/usr/local/bin:/usr/bin:/bin"
	var all bytes.Buffer
	for _, step := range r.workflow.Jobs[name].Steps {
		if step.Uses != "" {
			require.True(r.t, strings.HasPrefix(step.Uses, "actions/checkout@"), step.Uses)
			continue
		}
		require.NotContains(r.t, step.Run, "${{", "an expression in a script can run what it contains")
		cmd := exec.CommandContext(r.t.Context(), "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step.Run)
		cmd.Dir, cmd.Stdout, cmd.Stderr = checkout, &all, &all
		cmd.Env = append([]string{"PATH=" + path, "RUNNER_TEMP=" + temp, "GITHUB_PATH=" + file("path"), "GITHUB_OUTPUT=" + file("output"),
			"GITHUB_STEP_SUMMARY=" + file("summary")}, r.env...)
		for name, value := range step.Env {
			known, found := r.values[value]
			require.True(r.t, found, "%s: %s", name, value)
			cmd.Env = append(cmd.Env, name+"="+known)
		}
		err := cmd.Run()
		require.NotNil(r.t, cmd.ProcessState, "%v", err)
		if code = cmd.ProcessState.ExitCode(); code != 0 {
			break
		}
		if added, err := os.ReadFile(file("path")); err == nil {
			path = strings.TrimSpace(string(added)) + ":" + path
		}
	}
	outputs, _ := os.ReadFile(file("output")) // a job without outputs writes none
	for line := range strings.Lines(string(outputs)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		require.Equal(r.t, "${{ steps.plan.outputs."+key+" }}", r.workflow.Jobs[name].Outputs[key])
		r.values["${{ needs.plan.outputs."+key+" }}"] = value
	}
	text, _ := os.ReadFile(file("summary"))
	return all.String(), string(text), code
}

// The workflow in the documentation shows a plan, applies what was approved, and refuses if the
// configuration changed in between. Its steps run in a repository of their own.
func TestWorkflowOfTheDocumentation(t *testing.T) {
	url, key := installation(t)
	s := newShell(t)
	s.env["WEIR_URL"], s.env["WEIR_KEY"] = url, key
	text, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "ci", "weir-config.yml"))
	require.NoError(t, err)
	r := &runner{t: t, checkout: t.TempDir(), env: []string{"WEIR_URL=" + url, "WEIR_BINARY=file://" + s.program},
		values: map[string]string{"${{ secrets.WEIR_KEY }}": key}}
	require.NoError(t, yaml.Unmarshal(text, &r.workflow))
	require.Len(t, r.workflow.Jobs, 2)
	commit := func(content string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(r.checkout, "weir.yaml"), []byte(content), 0o600))
		r.git("add", "weir.yaml")
		r.git("commit", "-q", "-m", "change the configuration")
	}
	r.git("init", "-q", "-b", "main")

	commit(document)
	output, summary, code := r.job("plan")
	require.Zero(t, code, output)
	require.Contains(t, output, "create")
	require.Contains(t, summary, "api")
	require.Equal(t, "true", r.values["${{ needs.plan.outputs.changes }}"])
	require.Equal(t, "[]\n", s.must("-o", "json", "rules"), "a plan changes nothing")

	output, _, code = r.job("apply")
	require.Zero(t, code, output)
	require.Contains(t, output, "Applied 3 changes")
	output, _, code = r.job("plan")
	require.Zero(t, code, output)
	require.Equal(t, "false", r.values["${{ needs.plan.outputs.changes }}"])

	// Somebody changes the same rule on the dashboard while the plan waits for its approval.
	commit(strings.Replace(document, "limit: 2", "limit: 5", 1))
	_, _, code = r.job("plan")
	require.Zero(t, code)
	other := filepath.Join(t.TempDir(), "other.yaml")
	require.NoError(t, os.WriteFile(other, []byte(strings.Replace(document, "limit: 2", "limit: 3", 1)), 0o600))
	s.must("config", "push", "--yes", other)
	output, _, code = r.job("apply")
	require.Equal(t, 1, code, output)
	require.Contains(t, output, "changed after the plan")
	require.Contains(t, s.must("-o", "csv", "rules"), "fixed_window_first_hit,3,")
	_, _, code = r.job("plan")
	require.Zero(t, code)
	output, _, code = r.job("apply")
	require.Zero(t, code, output)
	require.Contains(t, output, "Applied 1 change to")
	require.Contains(t, s.must("-o", "csv", "rules"), "fixed_window_first_hit,5,")

	// A mistake fails the plan, so that the pull request cannot be merged.
	commit(strings.Replace(document, "limit: 2", "limit: -1", 1))
	output, _, code = r.job("plan")
	require.Equal(t, 1, code)
	require.Contains(t, output, "/rules/0/limit")
}
