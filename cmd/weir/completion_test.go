package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain is the command itself where the binary of the tests is called weir, so that a shell can
// run the command without building it.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "weir" {
		main()
	}
	os.Exit(m.Run())
}

func TestCompletion(t *testing.T) {
	s := &shell{t: t, env: map[string]string{}}
	for line, want := range map[string]string{
		"ch":                       "check",
		"config ":                  "diff pull push",
		"config p":                 "pull push",
		"config push --y":          "--yes",
		"config push -":            "--help --output --prune --yes",
		"-o ":                      "csv json table",
		"--output j":               "json",
		"--output=t":               "--output=table",
		"-o csv usage --grain ":    "day hour minute",
		"usage --rule check --gr":  "--grain --group-by",
		"completion ":              "bash fish zsh",
		"check user_42 ":           "",
		"check user_42 --resource": "--resource",
		"check --attribute a=b -r": "",
		"nothing":                  "",
	} {
		stdout, _, code := s.run("", append([]string{completeCommand}, strings.Split(line, " ")...)...)
		require.Zero(t, code)
		require.Equal(t, want, strings.Join(strings.Fields(stdout), " "), line)
	}
	stdout, _, _ := s.run("", completeCommand, "")
	for _, command := range []string{"check", "config", "login", "tail", "top", "completion"} {
		require.Contains(t, strings.Fields(stdout), command)
	}
	require.NotContains(t, stdout, completeCommand)
	_, _, code := s.run("", "completion", "tcsh")
	require.Equal(t, 2, code)
}

// The script works in the shell that it is for. zsh and fish are tried where they are installed.
func TestCompletionInShells(t *testing.T) {
	folder := t.TempDir()
	program, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(program, filepath.Join(folder, "weir")))
	// Each script completes one command line as the shell does when Tab is pressed, and prints it.
	for name, script := range map[string]string{
		"bash": `. <(weir completion bash)
			complete -p weir >/dev/null || exit 1
			COMP_WORDS=(weir config p); COMP_CWORD=2; _weir; echo "${COMPREPLY[@]}"
			COMP_WORDS=(weir ""); COMP_CWORD=1; _weir; echo "${COMPREPLY[@]}"`,
		"zsh": `compdef() { : }; _files() { : }
			compadd() { shift; print -r -- ${(P)1} }
			. <(weir completion zsh)
			words=(weir config p); CURRENT=3; _weir
			words=(weir ""); CURRENT=2; _weir`,
		"fish": `weir completion fish | source
			complete -C "weir config p" | string join " "
			complete -C "weir " | string join " "`,
	} {
		program, err := exec.LookPath(name)
		if err != nil && name != "bash" {
			continue
		}
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), program, "-c", script)
		cmd.Env = []string{"PATH=" + folder + ":/usr/bin:/bin", "HOME=" + folder, "TERM=dumb"}
		output, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", name, output)
		lines := strings.SplitN(string(output), "\n", 2)
		require.Equal(t, "pull push", lines[0], name)
		require.Contains(t, strings.Fields(lines[1]), "tail", name)
	}
}
