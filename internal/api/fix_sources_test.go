package api

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// Every problem in the source has a fix, including literals with a message.
func TestProblemsHaveFixes(t *testing.T) {
	literals := 0
	for _, folder := range []string{"limit", "check", "route", "tenants", "api", "dashboard"} {
		root := filepath.Join(testenv.Root(), "internal", folder)
		require.NoError(t, filepath.WalkDir(root, func(file string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			files := token.NewFileSet()
			parsed, err := parser.ParseFile(files, file, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				literal, ok := n.(*ast.CompositeLit)
				if !ok {
					return true
				}
				if list, isList := literal.Type.(*ast.ArrayType); isList && isProblem(list.Elt) {
					for _, e := range literal.Elts {
						if entry, elided := e.(*ast.CompositeLit); elided && entry.Type == nil {
							entry.Type = list.Elt
						}
					}
				}
				if !isProblem(literal.Type) {
					return true
				}
				members := map[string]bool{}
				for _, e := range literal.Elts {
					if pair, keyed := e.(*ast.KeyValueExpr); keyed {
						members[pair.Key.(*ast.Ident).Name] = true
					}
				}
				literals++
				complete := members["Message"] == members["Fix"] && (len(members) > 0 || len(literal.Elts) != 1)
				require.True(t, complete, "a problem without a fix: %s", files.Position(literal.Pos()))
				return true
			})
			return nil
		}))
	}
	require.Greater(t, literals, 5)
}

// isProblem reports whether a type has a message and a fix.
func isProblem(expr ast.Expr) bool {
	if s, qualified := expr.(*ast.SelectorExpr); qualified {
		expr = s.Sel
	}
	name, ok := expr.(*ast.Ident)
	return ok && (name.Name == "FieldError" || name.Name == "ProblemField" || name.Name == "Problem")
}
