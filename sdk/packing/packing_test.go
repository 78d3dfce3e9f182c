package packing

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	modzip "golang.org/x/mod/zip"

	"weir/internal/testenv"
)

// published are the modules of sdk/go that are for others, by folder. frameworks is not.
var published = []string{".", "weirgrpc", "weirotel"}

// commands are the packages main of the modules. Nobody who requires a module builds them.
var commands = []string{"examples/first", "internal/leasecallers", "internal/withscripted"}

// The proxy of Go serves a module as a ZIP file of its tracked files. Each must have what a package
// needs to be published, and nothing that is not source.
func TestGoModulesPack(t *testing.T) {
	t.Parallel()
	source := trackedCopy(t)
	for _, folder := range published {
		t.Run(folder, func(t *testing.T) {
			version, content := pack(t, filepath.Join(source, folder))
			archive, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
			require.NoError(t, err)
			var names, mains []string
			for _, file := range archive.File {
				name := strings.TrimPrefix(file.Name, version.String()+"/")
				names = append(names, name)
				require.Regexp(t, `^(LICENSE|README\.md|CHANGELOG\.md|go\.mod|go\.sum|.*\.go)$`, name, "it does not belong in the module")
				text := read(t, file)
				require.NotContains(t, text, "\x00", "%s is not text", name)
				if strings.HasSuffix(name, ".go") && regexp.MustCompile(`(?m)^package main$`).MatchString(text) {
					mains = append(mains, path.Dir(name))
				}
				if name == "CHANGELOG.md" {
					require.Contains(t, text, "\n## "+strings.TrimPrefix(version.Version, "v")+"\n", "the changelog lacks this version")
				}
			}
			require.Subset(t, names, []string{"LICENSE", "README.md", "CHANGELOG.md", "go.mod"})
			for _, other := range []string{"frameworks/", "weirgrpc/", "weirotel/"} {
				require.False(t, slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, other) }), "%s is another module", other)
			}
			for _, main := range mains {
				require.Contains(t, commands, main)
			}
		})
	}
}

// A module without replace must compile with what the proxy serves. Other modules come from the
// cache of this machine, or from its own proxy where the cache lacks them.
func TestGoModulesCompileFromAProxy(t *testing.T) {
	t.Parallel()
	source, proxy, consumer := trackedCopy(t), t.TempDir(), t.TempDir()
	file := modfile.File{Syntax: &modfile.FileSyntax{}}
	require.NoError(t, file.AddModuleStmt("example.com/consumer"))
	require.NoError(t, file.AddGoStmt("1.26.0"))
	var sums strings.Builder
	names := map[string]string{}
	for _, folder := range published {
		version, _ := publish(t, filepath.Join(source, folder), proxy)
		require.NoError(t, file.AddRequire(version.Path, version.Version))
		names[folder] = version.Path
		if content, err := os.ReadFile(filepath.Join(source, folder, "go.sum")); err == nil {
			sums.Write(content)
		}
	}
	program := strings.NewReplacer("CLIENT", names["."], "GRPC", names["weirgrpc"], "OTEL", names["weirotel"]).Replace(`package main

import (
	"fmt"

	weir "CLIENT"
	"CLIENT/weirtest"
	"GRPC"
	"OTEL"
)

func main() {
	hooks, err := weirotel.Hooks()
	if err != nil {
		panic(err)
	}
	_, err = weir.New("", "", weir.WithHooks(hooks))
	guard := weirgrpc.Guard{Checker: weirtest.AllowAll()}
	fmt.Println(weir.Version, err != nil, guard.Checker != nil)
}
`)
	content, err := file.Format()
	require.NoError(t, err)
	for name, text := range map[string]string{"go.mod": string(content), "go.sum": sums.String(), "main.go": program} {
		require.NoError(t, os.WriteFile(filepath.Join(consumer, name), []byte(text), 0o644))
	}
	environment := environmentOfGo(t)
	cache := t.TempDir()
	t.Cleanup(func() { _, _ = run(consumer, []string{"GOMODCACHE=" + cache}, "go", "clean", "-modcache") }) // it is read-only
	out, err := run(consumer, []string{
		"GOMODCACHE=" + cache, "GOFLAGS=-mod=mod -modcacherw -trimpath", "GOWORK=off", "GOTOOLCHAIN=local",
		"GONOSUMDB=" + names["."] + "," + names["."] + "/*",
		"GOPROXY=file://" + proxy + ",file://" + filepath.Join(environment["GOMODCACHE"], "cache", "download") + "," + environment["GOPROXY"],
	}, "go", "run", ".")
	require.NoError(t, err, "%s", out)
	require.True(t, strings.HasSuffix(out, clientVersion(t)+" true true\n"), "%s", out) // after what go downloads
}

// trackedCopy copies the files of sdk/go that git tracks, or would track.
func trackedCopy(t *testing.T) string {
	t.Helper()
	source := filepath.Join(testenv.Root(), "sdk", "go")
	out, err := run(source, nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	require.NoError(t, err, "%s", out)
	to := t.TempDir()
	for name := range strings.SplitSeq(strings.Trim(out, "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(source, name))
		if os.IsNotExist(err) {
			continue // deleted, but not committed yet
		}
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(to, name), content, 0o644))
	}
	return to
}

// pack returns a module as the proxy serves it.
func pack(t *testing.T, folder string) (module.Version, []byte) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	require.NoError(t, err)
	version := module.Version{Path: modfile.ModulePath(content), Version: "v" + clientVersion(t)}
	var archive bytes.Buffer
	require.NoError(t, modzip.CreateFromDir(&archive, version, folder))
	return version, archive.Bytes()
}

// publish writes a module into a folder that is a proxy.
func publish(t *testing.T, folder, proxy string) (module.Version, []byte) {
	t.Helper()
	version, archive := pack(t, folder)
	escaped, err := module.EscapePath(version.Path)
	require.NoError(t, err)
	to := filepath.Join(proxy, filepath.FromSlash(escaped), "@v")
	require.NoError(t, os.MkdirAll(to, 0o755))
	manifest, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	require.NoError(t, err)
	info, err := json.Marshal(map[string]string{"Version": version.Version})
	require.NoError(t, err)
	for extension, content := range map[string][]byte{".zip": archive, ".mod": manifest, ".info": info} {
		require.NoError(t, os.WriteFile(filepath.Join(to, version.Version+extension), content, 0o644))
	}
	return version, archive
}

// clientVersion returns the version that the client sends as User-Agent.
func clientVersion(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(testenv.Root(), "sdk", "go", "send.go"))
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^const Version = "(.+)"$`).FindSubmatch(content)
	require.NotNil(t, found, "send.go has no version")
	return string(found[1])
}

func environmentOfGo(t *testing.T) map[string]string {
	t.Helper()
	out, err := run("", nil, "go", "env", "-json", "GOMODCACHE", "GOPROXY")
	require.NoError(t, err)
	var environment map[string]string
	require.NoError(t, json.Unmarshal([]byte(out), &environment))
	return environment
}

func read(t *testing.T, file *zip.File) string {
	t.Helper()
	reader, err := file.Open()
	require.NoError(t, err)
	content, err := io.ReadAll(reader)
	require.NoError(t, err)
	return string(content)
}

func run(folder string, environment []string, name string, args ...string) (string, error) {
	command := exec.Command(name, args...)
	command.Dir = folder
	command.Env = append(os.Environ(), environment...)
	out, err := command.CombinedOutput()
	return string(out), err
}
