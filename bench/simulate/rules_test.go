package simulate

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// constants returns the constants of a package's source, as they are written.
func constants(t *testing.T, folder string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files, folder)
	found := map[string]string{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok || decl.Tok != token.CONST {
				continue
			}
			for _, s := range decl.Specs {
				for i, value := range s.(*ast.ValueSpec).Values {
					found[s.(*ast.ValueSpec).Names[i].Name] = types.ExprString(value)
				}
			}
		}
	}
	return found
}

// The model follows the rules of the real code: a constant that changes there must change here.
func TestConstants(t *testing.T) {
	own := constants(t, ".")
	engine := "../../internal/engine"
	for folder, names := range map[string][]string{
		engine + "/redis": {"maxBatchWork", "fairQuantum", "clusterGather", "maxPatience", "lateLook"},
		engine: {
			"breakerInARow", "breakerTimedOut", "breakerWindow", "breakerMinCalls", "breakerGoodProbes", "breakerRamp",
			"probeFirst", "probeNext", "probeMost", "denialMS", "graceMS", "leaseEvery", "leaseBackoff", "leaseLow", "leaseBusy", "rateTickMS",
		},
	} {
		real := constants(t, folder)
		for _, name := range names {
			require.NotEmpty(t, real[name], name)
			require.Equal(t, real[name], own[name], name)
		}
	}
	require.Equal(t, constants(t, engine)["AwakeTick"], own["awakeTick"])
	limits := constants(t, "../../internal/limit")
	for real, name := range map[string]string{"LeaseHold": "leaseHold", "LeaseShare": "leaseShare", "LeaseLeast": "leaseLeast"} {
		require.NotEmpty(t, limits[real], real)
		require.Equal(t, limits[real], own[name], name)
	}
}
