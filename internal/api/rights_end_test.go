package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A key that is revoked while the body of a request arrives changes nothing. Before, a thief who
// kept a request open made a new key after the revocation.
func TestKeyRevokedWhileTheBodyArrives(t *testing.T) {
	s := newAdminStack(t)
	for path, request := range map[string]struct{ mediaType, body string }{
		"/v1/keys":          {"application/json", `{"name":"after","scopes":["check","read","write","manage"]}`},
		"/v1/bulk/subjects": {"application/jsonl", `{"subject":"mallory","multiplier":1000}` + "\n"},
	} {
		stolen, secret, err := s.store.CreateKey(t.Context(), s.a, tenants.NewAPIKey{Name: "stolen", Scopes: tenants.AllScopes})
		require.NoError(t, err)
		c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n",
			path, secret.Secret(), request.mediaType, len(request.body))
		require.NoError(t, err)
		from := bufio.NewReader(c)
		ready, err := from.ReadString('\n') // the server waits for the body, so it knows the actor
		require.NoError(t, err)
		require.Contains(t, ready, "100 Continue")
		_, err = from.ReadString('\n')
		require.NoError(t, err)

		require.NoError(t, s.store.RevokeKey(t.Context(), s.a, stolen.ID, tenants.Match{}))
		_, err = io.WriteString(c, request.body)
		require.NoError(t, err)
		r, err := http.ReadResponse(from, nil)
		require.NoError(t, err)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Equal(t, http.StatusUnauthorized, r.StatusCode, "%s: %s", path, body)
		require.Contains(t, string(body), codeKeyRevoked, path)
		require.Equal(t, challenge, r.Header.Get("Www-Authenticate"), path)
	}
	_, err := s.store.SubjectByName(t.Context(), s.a, "mallory")
	require.ErrorIs(t, err, tenants.ErrNotFound)
}
