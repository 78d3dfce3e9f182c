package tests

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"weir/internal/testenv"
)

// A variable in docker-compose.yml that the server does not know would have no effect.
func TestComposeSetsKnownVariables(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(filepath.Join(testenv.Root(), "docker-compose.yml"))
	require.NoError(t, err)
	var file struct {
		Services map[string]struct{ Environment map[string]string }
	}
	require.NoError(t, yaml.Unmarshal(content, &file))
	environment := file.Services["server"].Environment
	require.Contains(t, environment, "WEIR_DATABASE_URL")
	for name := range environment {
		require.Contains(t, help(t), name)
	}
}
