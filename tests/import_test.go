package tests

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// The import command for envoyproxy/ratelimit prints a document that Weir accepts unchanged to
// standard output, and a report to standard error. It needs no settings.
func TestImportCommand(t *testing.T) {
	t.Parallel()
	file := filepath.Join(testenv.Root(), "internal", "importer", "testdata", "banned-address.yaml")
	document, report, code := runServer(t, settings{}, "import", "envoy-ratelimit", file)
	require.Zero(t, code, report)
	require.Equal(t, "2 rules, and the route front-door with 2 templates\n"+
		"the domain \"front_door\" is decided by the route \"front-door\"\n", report)

	s := newSettings(t)
	i := start(t, s).AwaitReady()
	tenant := newTenant(t, s, i)
	request, err := http.NewRequest(http.MethodPut, i.URL()+"/v1/config?dry_run=true", strings.NewReader(document))
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+tenant.key)
	request.Header.Set("Content-Type", "application/yaml")
	response, err := tenant.http.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Zero(t, i.Stop())

	broken := filepath.Join(t.TempDir(), "broken.yaml")
	require.NoError(t, os.WriteFile(broken, []byte("rules: []\n"), 0o600))
	document, report, code = runServer(t, settings{}, "import", "envoy-ratelimit", broken)
	require.NotZero(t, code)
	require.Empty(t, document)
	require.Contains(t, report, "broken.yaml: the file is not a configuration of envoyproxy/ratelimit")
}
