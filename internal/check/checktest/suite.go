package checktest

import (
	"context"
	"crypto/rand"
	"embed"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
)

//go:embed testdata/conformance
var vectors embed.FS

// Prefix returns the beginning of keys that nobody used before, all in one slot of a cluster.
func Prefix() string { return "w1:{" + rand.Text() + "}:" }

// Vectors runs all test vectors of the project on an engine.
func Vectors(t *testing.T, engine check.Engine) {
	files, err := fs.Sub(vectors, "testdata/conformance")
	require.NoError(t, err)
	names, err := FileNames(files)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(names), 8, "files of vectors")
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			file, err := ReadFile(files, name)
			require.NoError(t, err)
			for _, c := range file.Cases {
				for _, failure := range RunCase(context.Background(), engine, Prefix(), c) {
					t.Error(failure)
				}
			}
		})
	}
}
