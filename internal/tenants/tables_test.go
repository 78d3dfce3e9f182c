package tenants

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// No cell of a table is a formula, and each text can be restored from its cell.
func TestCells(t *testing.T) {
	for text, cell := range map[string]string{
		"": "", "a": "a", "=1+1": "'=1+1", "'=1": "''=1", "''-x": "'''-x", "'": "'", "'quoted'": "'quoted'", "+a": "'+a", "-a": "'-a",
		"@a": "'@a", "\ta": "'\ta", "\ra": "'\ra", "a=b": "a=b", "''": "''",
	} {
		require.Equal(t, cell, CSVCell(text))
		require.Equal(t, text, CSVText(cell))
	}
}
