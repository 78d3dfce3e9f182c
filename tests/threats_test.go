package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// Every test that the threat model names exists, and every threat names one or says that there is
// none. A renamed or deleted test would otherwise leave a promise that nothing shows. A name that
// two tests have names neither.
func TestThreatModelNamesTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "threats.md"))
	require.NoError(t, err)
	known := testenv.DeclaredTests(t)
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	rows, column := 0, -1
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		last := strings.TrimSuffix(strings.TrimSpace(cells[len(cells)-1]), " |")
		switch {
		case !strings.HasPrefix(line, "|"):
			column = -1
			continue
		case last == "test":
			column = len(cells)
			continue
		case column < 0 || strings.HasPrefix(line, "|---"):
			continue
		}
		require.Len(t, cells, column, line)
		tests := named.FindAllStringSubmatch(last, -1)
		if len(tests) == 0 {
			require.Equal(t, "no test", last, line)
		}
		for _, test := range tests {
			require.Equal(t, 1, known[test[1]], "tests with the name %s: %s", test[1], line)
		}
		rows++
	}
	require.Greater(t, rows, 50)
}

// Each table says what bounds its growth, so that a new one is not forgotten.
func TestThreatModelListsTables(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "threats.md"))
	require.NoError(t, err)
	_, growth, found := strings.Cut(string(page), "## Growth of tables")
	require.True(t, found)
	growth, _, _ = strings.Cut(growth, "\n## ")
	schema, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "schema.sql"))
	require.NoError(t, err)
	var listed, tables []string
	for row := range strings.Lines(growth) {
		first, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
		if strings.HasPrefix(row, "| `") {
			for _, name := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(first, -1) {
				listed = append(listed, name[1])
			}
		}
	}
	for _, table := range regexp.MustCompile(`(?m)^CREATE TABLE ([a-z_]+) `).FindAllStringSubmatch(string(schema), -1) {
		tables = append(tables, table[1])
	}
	require.ElementsMatch(t, tables, listed)
}
