package testenv

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// DeclaredTests returns how often each name of a test or fuzz target is declared in the checkout,
// in all of its modules.
func DeclaredTests(tb testing.TB) map[string]int {
	tb.Helper()
	declared := map[string]int{}
	pattern := regexp.MustCompile(`(?m)^func (Test\w+|Fuzz\w+)\(`)
	require.NoError(tb, filepath.WalkDir(Root(), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != Root() || d.Name() == "node_modules"):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		for _, found := range pattern.FindAllSubmatch(source, -1) {
			declared[string(found[1])]++
		}
		return err
	}))
	return declared
}
