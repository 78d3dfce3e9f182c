package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Numbers that take very long to parse are found, and texts that look alike are not.
func TestLongExponents(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"1e309": 1, "1.E-310,2e+0309": 2, "[5e-310]": 1, "1e99": 0, "e309": 0, "12e345abc": 0, "ae309": 0, "1e": 0, "": 0, "1e+": 0, "1e12 e309": 0,
	} {
		require.Equal(t, want, longExponents(text), text)
		require.Equal(t, want, longExponents([]byte(text)), text)
	}
	var tree any
	require.NoError(t, jsonFormat.Unmarshal([]byte(`[1e309, 5e-310, 1.5, 7]`), &tree))
	require.Equal(t, []any{json.Number("1e309"), json.Number("5e-310"), 1.5, int64(7)}, tree)
	many := "a: [" + strings.Repeat("1e309, ", maxLongExponents+1) + "1]"
	_, p := jsonOfYAML(t.Context(), []byte(many))
	require.NotNil(t, p)
	require.Contains(t, p.Detail, "exponent")
	_, p = jsonOfYAML(t.Context(), []byte(strings.ReplaceAll(many, "1e309", "1e30")))
	require.Nil(t, p)
}

// A header Accept that the library cannot read, or only slowly, is none.
func TestOddAccept(t *testing.T) {
	t.Parallel()
	for accept, stays := range map[string]bool{
		"application/json": true, "text/html,application/xml;q=0.9,image/webp;v=b3;q=0.125, */*; q=1": true, "text/csv": true,
		"a;,b": false, "a;q,b": false, "a;": false, "a; ;q=1": false, "a;=1": false, "a;q=": false,
		"a;q=1e309": false, "a;q=0.12345": false, "a;v=1e9": false, "a;q=-1": false,
		"a" + strings.Repeat(",a", maxAccept): false,
	} {
		h := http.Header{"Accept": {accept}}
		dropOddAccept(h)
		require.Equal(t, stays, len(h) > 0, accept)
	}
}

// Before, such a request was a panic after its change was made.
func TestOddAcceptIsAnswered(t *testing.T) {
	s := newAdminStack(t)
	for _, accept := range []string{"a;,b", "a;q,b", "application/json;q=1e309"} {
		require.Equal(t, http.StatusOK, s.call(s.key, http.MethodGet, "/v1/rules", nil, header{"Accept", accept}).status, accept)
	}
}
