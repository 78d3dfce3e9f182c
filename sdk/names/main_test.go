package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// copyOfTree copies all tracked files of this repository into a repository of the test's own.
func copyOfTree(t *testing.T) string {
	t.Helper()
	files, err := tracked("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join("../..", file))
		if os.IsNotExist(err) {
			continue // deleted, but not committed yet
		}
		require.NoError(t, err)
		to := filepath.Join(dir, file)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		require.NoError(t, os.WriteFile(to, content, 0o644))
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A", "-f"}} {
		out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return dir
}

func contains(t *testing.T, dir, text string) bool {
	t.Helper()
	err := exec.Command("git", "-C", dir, "grep", "-qF", text).Run()
	return err == nil
}

// The publisher of the clients owns the names: one command must be enough, and nothing may keep
// the old ones.
func TestOneCommandChangesAllNames(t *testing.T) {
	dir := copyOfTree(t)
	require.NoError(t, run(dir, []string{"-check"}))
	old, err := read(dir)
	require.NoError(t, err)
	require.NoError(t, run(dir, []string{"go=example.org/acme/limits-go", "npm=@acme/limits", "pypi=acme-limits", "terraform=acme/limits"}))
	require.NoError(t, run(dir, []string{"-check"}))
	names, err := read(dir)
	require.NoError(t, err)
	require.Equal(t, Names{"example.org/acme/limits-go", "@acme/limits", "acme-limits", "acme/limits"}, names)
	for _, k := range kinds {
		require.False(t, contains(t, dir, `"`+*k.field(&old)+`"`), "%s is still there", *k.field(&old))
	}
	require.False(t, contains(t, dir, old.Go), "the old module path is still there")
	require.False(t, contains(t, dir, providerProgram(old.Terraform)), "the old provider is still there")
	build := exec.Command("go", "vet", "./...")
	build.Dir = filepath.Join(dir, "sdk", "go")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	// and back again, to what it was
	require.NoError(t, run(dir, []string{"go=" + old.Go, "npm=" + old.NPM, "pypi=" + old.PyPI, "terraform=" + old.Terraform}))
	diff, err := exec.Command("git", "-C", dir, "diff", "--stat", "--", ".", ":!sdk/names/main_test.go").CombinedOutput() // this file has the other names in it
	require.NoError(t, err)
	require.Empty(t, string(diff))
}

func TestNamesAreChecked(t *testing.T) {
	dir := copyOfTree(t)
	for _, wrong := range []string{"go=weir", "npm=Weir", "pypi=-weir", "terraform=weir", "cargo=weir", "go"} {
		require.Error(t, run(dir, []string{wrong}), wrong)
	}
	require.ErrorContains(t, run(dir, []string{"pypi=limits"}), `"limits" is a word of`) // it could not be changed again
	require.Equal(t, "acme-old new", string(replace([]byte("old acme"), []replacement{{"old", "acme-old"}, {"acme", "new"}})))
	mod := filepath.Join(dir, "sdk", "go", "go.mod")
	content, err := os.ReadFile(mod)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(mod, []byte(strings.Replace(string(content), "module ", "module example.org/", 1)), 0o644))
	require.ErrorContains(t, run(dir, []string{"-check"}), "sdk/go/go.mod")
}
