package dashboard

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// On a slow connection, a compressed page takes a quarter of the time.
func TestPagesAreCompressed(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "x")
	ann := s.as("ann@example.com")
	request := ann.request(http.MethodGet, "/rules", nil)
	request.Header.Set("Accept-Encoding", "br, gzip")
	got := ann.send(request)
	require.Equal(t, http.StatusOK, got.status)
	require.Equal(t, "gzip", got.header.Get("Content-Encoding"))
	require.Equal(t, "Accept-Encoding", got.header.Get("Vary"))
	z, err := gzip.NewReader(strings.NewReader(got.body))
	require.NoError(t, err)
	page, err := io.ReadAll(z)
	require.NoError(t, err)
	require.Contains(t, string(page), "Rule x")
	require.Less(t, len(got.body), len(page)/2)

	request = ann.request(http.MethodGet, "/rules", nil)
	request.Header.Set("Accept-Encoding", "identity")
	got = ann.send(request)
	require.Empty(t, got.header.Get("Content-Encoding"))
	require.Equal(t, string(page), got.body)
}

// The length of a compressed page with a key and text of another user would reveal the key.
func TestSecretsAreNotCompressed(t *testing.T) {
	body := []byte(strings.Repeat("a page ", 1000))
	r := httptest.NewRequest(http.MethodGet, "/keys", http.NoBody)
	r.Header.Set("Accept-Encoding", "gzip")
	w := httptest.NewRecorder()
	packed(w.Header(), r, body).write(w, http.StatusOK)
	require.Equal(t, "gzip", w.Header().Get("Content-Encoding"))

	w = httptest.NewRecorder()
	showsSecret(w)
	packed(w.Header(), r, body).write(w, http.StatusCreated)
	require.Equal(t, http.StatusCreated, w.Code)
	require.Empty(t, w.Header().Get("Content-Encoding"))
	require.Equal(t, body, w.Body.Bytes())
	require.Equal(t, "no-store, no-transform", w.Header().Get("Cache-Control"), "a proxy must not compress it either")
}
