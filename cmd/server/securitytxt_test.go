package main

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The file has the fields that RFC 9116 requires, and exists only with a contact.
func TestSecurityText(t *testing.T) {
	t.Parallel()
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	get := func(h http.Handler, method, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, http.NoBody))
		return w
	}
	require.Equal(t, 404, get(securityText("", "", next), "GET", securityTextPath).Code)
	h := securityText("mailto:security@example.com", "https://weir.example", next)
	require.Equal(t, 404, get(h, "GET", "/security.txt").Code)
	require.Equal(t, 404, get(h, "POST", securityTextPath).Code)
	got := get(h, "GET", securityTextPath)
	require.Equal(t, 200, got.Code)
	require.Equal(t, "text/plain; charset=utf-8", got.Header().Get("Content-Type"))
	body := got.Body.String()
	require.Contains(t, body, "Contact: mailto:security@example.com\n")
	require.Contains(t, body, "Canonical: https://weir.example/.well-known/security.txt\n")
	expires, err := time.Parse(time.RFC3339, regexp.MustCompile(`(?m)^Expires: (.*)$`).FindStringSubmatch(body)[1])
	require.NoError(t, err)
	require.True(t, expires.After(time.Now()))

	for _, bad := range []string{"security@example.com", "http://example.com", "https://", "mailto:", "tel:", "mailto:a@b\nContact: x", "javascript:alert(1)", "https://ä.example/" + strings.Repeat("x", 10)} {
		require.Error(t, checkContact(bad), bad)
	}
	for _, good := range []string{"mailto:security@example.com", "https://example.com/security", "tel:+1-201-555-0123"} {
		require.NoError(t, checkContact(good), good)
	}
}
