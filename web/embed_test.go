package web

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const vendored = "vendor/swagger-ui-dist/swagger-ui-bundle.js"

// A vendored file that was edited would be lost with the next `make web`, or be somebody's back
// door.
func TestVendoredFilesAreAsTheyCame(t *testing.T) {
	sums, err := os.ReadFile("vendor.sha256")
	require.NoError(t, err)
	want := map[string]string{}
	for line := range strings.Lines(string(sums)) {
		sum, file, found := strings.Cut(strings.TrimSpace(line), "  ")
		require.True(t, found, line)
		want[file] = sum
	}
	got := map[string]string{}
	require.NoError(t, fs.WalkDir(files, "static/vendor", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := files.ReadFile(file)
		sum := sha256.Sum256(content)
		got[file] = hex.EncodeToString(sum[:])
		return err
	}))
	require.NotEmpty(t, got)
	require.Equal(t, want, got)
}

// A copy of third-party work includes its licence.
func TestVendoredFilesHaveALicence(t *testing.T) {
	packages, err := fs.ReadDir(files, "static/vendor")
	require.NoError(t, err)
	require.NotEmpty(t, packages)
	for _, p := range packages {
		text, err := files.ReadFile("static/vendor/" + p.Name() + "/LICENSE")
		require.NoError(t, err)
		require.NotEmpty(t, text)
	}
}

func serve(path string, headers ...string) (*httptest.ResponseRecorder, bool) {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	return w, Serve(w, r)
}

// A browser keeps an asset for a year, which is right only as its path changes with its content.
func TestAssetsAreKeptUnderTheirHash(t *testing.T) {
	want, err := files.ReadFile("static/" + vendored)
	require.NoError(t, err)
	sum := sha256.Sum256(want)
	require.Contains(t, Path(vendored), hex.EncodeToString(sum[:8]))

	w, found := serve(Path(vendored))
	require.True(t, found)
	require.Equal(t, want, w.Body.Bytes())
	require.Equal(t, "text/javascript; charset=utf-8", w.Header().Get("Content-Type"))
	require.Contains(t, w.Header().Get("Cache-Control"), "immutable")

	w, found = serve(Path(vendored), "Accept-Encoding", "br, gzip")
	require.True(t, found)
	require.Equal(t, "gzip", w.Header().Get("Content-Encoding"))
	require.Less(t, w.Body.Len(), len(want)/2)
	z, err := gzip.NewReader(w.Body)
	require.NoError(t, err)
	got, err := io.ReadAll(z)
	require.NoError(t, err)
	require.Equal(t, want, got)

	w, _ = serve(Path(vendored), "Accept-Encoding", "gzip;q=0")
	require.Empty(t, w.Header().Get("Content-Encoding"))
}

func TestOnlyAssetsAreServed(t *testing.T) {
	for _, path := range []string{
		Prefix, Prefix + vendored, Prefix + "vendor/swagger-ui-dist/LICENSE", Prefix + "../embed.go",
		strings.ToUpper(Path(vendored)), Path(vendored) + "/",
	} {
		w, found := serve(path)
		require.False(t, found, path)
		require.Zero(t, w.Body.Len())
	}
	require.Panics(t, func() { Path("js/none.js") })
}
