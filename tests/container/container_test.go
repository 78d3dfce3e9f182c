// Package container reads the Dockerfile and docker-compose.yml with the loaders of BuildKit and
// Docker Compose. It is a separate module, so that these do not become dependencies of the product.
//
// Example: a typing error such as "COPYY . ." in the Dockerfile, or a service that depends on a
// service that does not exist, fails the test with the line. No image is built and no container
// runs.
package container

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/stretchr/testify/require"
)

// root is the directory of the two files.
const root = "../.."

// pinned matches an image with its digest.
const pinned = `^[a-z]+:[0-9.]+@sha256:[0-9a-f]{64}$`

// `docker compose up` accepts the file: Docker Compose's own loader reads it here, including schema
// and references.
func TestComposeFileStartsAllServices(t *testing.T) {
	options, err := cli.NewProjectOptions([]string{filepath.Join(root, "docker-compose.yml")}, cli.WithName("weir"))
	require.NoError(t, err)
	project, err := options.LoadProject(t.Context())
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"server", "postgres", "redis"}, project.ServiceNames())

	for _, name := range []string{"postgres", "redis"} {
		require.NotNil(t, project.Services[name].HealthCheck, "%s: the server waits until it is healthy", name)
		require.Equal(t, "service_healthy", project.Services["server"].DependsOn[name].Condition)
	}
	for name, service := range project.Services {
		if service.Build == nil {
			require.Regexp(t, pinned, service.Image, "%s: a tag can stand for another image tomorrow", name)
		}
		for _, port := range service.Ports {
			require.Equal(t, "127.0.0.1", port.HostIP, "%s: passwords this simple are for loopback", name)
		}
	}
	redis := strings.Join(project.Services["redis"].Command, " ")
	for _, setting := range []string{"--requirepass weir", "--maxmemory-policy noeviction", "--appendonly yes"} {
		require.Contains(t, redis, setting)
	}
}

func TestComposePortsCanBeChosen(t *testing.T) {
	options, err := cli.NewProjectOptions([]string{filepath.Join(root, "docker-compose.yml")}, cli.WithName("weir"),
		cli.WithEnv([]string{"HTTP_PORT=18080", "POSTGRES_PORT=15432", "REDIS_PORT=16379"}))
	require.NoError(t, err)
	project, err := options.LoadProject(t.Context())
	require.NoError(t, err)
	require.Equal(t, "18080", project.Services["server"].Ports[0].Published)
	require.Equal(t, "15432", project.Services["postgres"].Ports[0].Published)
	require.Equal(t, "16379", project.Services["redis"].Ports[0].Published)
}

// The image is as operations.md describes it: an empty base, not root, and a health check without a
// shell.
func TestDockerfile(t *testing.T) {
	file, err := os.Open(filepath.Join(root, "Dockerfile"))
	require.NoError(t, err)
	defer file.Close()
	parsed, err := parser.Parse(file)
	require.NoError(t, err)
	require.Empty(t, parsed.Warnings)
	stages, _, err := instructions.Parse(parsed.AST, nil)
	require.NoError(t, err)
	require.Len(t, stages, 2)
	require.Regexp(t, pinned, stages[0].BaseName)
	last := stages[1]
	require.Equal(t, "scratch", last.BaseName)

	var user string
	var health []string
	for _, command := range last.Commands {
		switch c := command.(type) {
		case *instructions.UserCommand:
			user = c.User
		case *instructions.HealthCheckCommand:
			health = c.Health.Test
		case *instructions.RunCommand:
			t.Error("an empty image has nothing to run")
		}
	}
	require.Equal(t, "65532:65532", user)
	require.Equal(t, []string{"CMD", "/server", "healthcheck"}, health)
	copies := slices.ContainsFunc(last.Commands, func(command instructions.Command) bool {
		c, ok := command.(*instructions.CopyCommand)
		return ok && c.From == "build" && slices.Equal(c.SourcePaths, []string{"/server"})
	})
	require.True(t, copies)
}
