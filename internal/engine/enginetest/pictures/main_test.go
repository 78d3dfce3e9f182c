package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/testenv"
)

// The documentation must show what the engine does.
func TestPicturesAreFresh(t *testing.T) {
	for _, a := range limit.Algorithms {
		name := filepath.Join(testenv.Root(), "docs", "img", fileName(a))
		committed, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, string(draw(a)), string(committed),
			"out of date; run: go run ./internal/engine/enginetest/pictures docs/img")
	}
}
