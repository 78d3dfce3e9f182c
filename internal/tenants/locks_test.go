package tenants_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// No two advisory locks have the same number, wherever they are declared.
func TestAdvisoryLocksAreDifferent(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	more, err := filepath.Glob("tenantstest/*.go")
	require.NoError(t, err)
	names := map[string]string{} // by number
	for _, file := range append(files, more...) {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, is := n.(*ast.ValueSpec)
			if !is || len(spec.Values) != 1 || !strings.HasSuffix(spec.Names[0].Name, "Lock") {
				return true
			}
			if number, is := spec.Values[0].(*ast.BasicLit); is && number.Kind == token.INT {
				require.Empty(t, names[number.Value], "%s has the number of another lock", spec.Names[0].Name)
				names[number.Value] = spec.Names[0].Name
			}
			return true
		})
	}
	require.GreaterOrEqual(t, len(names), 9)
}
