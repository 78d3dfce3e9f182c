package tests

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// The table of outcomes in docs/clients.md promises that each of its cells is a case of the suite
// that all clients pass: each row for on_failure allow, deny and local.
func TestOutcomesOfClientsAreCases(t *testing.T) {
	t.Parallel()
	situations := map[string][]string{
		"allows":                           {"a server that allows"},
		"denies":                           {"a server that denies"},
		"is slow, but answers in time":     {"a server that is slow but in time"},
		"hangs, before or within":          {"a server that hangs"},
		"refuses connections":              {"a server that is dead"},
		"crashes: resets, closes, cuts":    {"a server that crashes", "a server that cuts its answer off"},
		"restarts":                         {"a server that restarts"},
		"answers `5xx`":                    {"a server that fails"},
		"says that the tenant is over":     {"a server that is over the tenant's quota"},
		"sends an invalid answer":          {"a server that answers nonsense"},
		"has failed too often":             {"a breaker that is open"},
		"refuses: `400`":                   {"a server that refuses the call"},
		"gets no request, because a value": {"a value that is refused before sending"},
	}
	page, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "clients.md"))
	require.NoError(t, err)
	table := regexp.MustCompile(`(?s)\| the server \|.*?\n\n`).FindString(string(page))
	rows := strings.Split(strings.TrimSpace(table), "\n")[2:]
	var promised []string
	for _, row := range rows {
		found := slices.IndexFunc(slices.Collect(maps.Keys(situations)), func(start string) bool { return strings.HasPrefix(row, "| "+start) })
		require.NotEqual(t, -1, found, "the row %q names no case", row)
	}
	for start, names := range situations {
		require.True(t, slices.ContainsFunc(rows, func(row string) bool { return strings.HasPrefix(row, "| "+start) }), "no row begins with %q", start)
		for _, name := range names {
			for _, policy := range []string{"allow", "deny", "local"} {
				promised = append(promised, name+", on_failure "+policy)
			}
		}
	}
	content, err := os.ReadFile(filepath.Join(testenv.Root(), "sdk", "suite", "outcomes.json"))
	require.NoError(t, err)
	var suite struct {
		Cases []struct {
			Name      string
			Languages []string
		}
	}
	require.NoError(t, json.Unmarshal(content, &suite))
	var cases []string
	for _, c := range suite.Cases {
		require.Empty(t, c.Languages, "%s must hold for all clients", c.Name)
		cases = append(cases, c.Name)
	}
	require.ElementsMatch(t, cases, promised)
}
