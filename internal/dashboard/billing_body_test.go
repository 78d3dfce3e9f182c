package dashboard

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The body of an event is indented as usual, up to the part that is shown, however deep it is.
func TestEventBodiesAreIndented(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{"id":"evt_1","data":{"object":{"id":"sub_1","items":[1,2.50,{"a":null}],"none":{},"empty":[ ]}},"ok":true}`,
		`[]`, `"text"`, `12`, ` { "a" : [ [ ] , { } ] } `,
		`{"quoted \" \\":"{[,:]}","ünï":"\u00e9\n"}`,
	} {
		var want bytes.Buffer
		require.NoError(t, json.Indent(&want, []byte(strings.TrimSpace(body)), "", "  "))
		text, cut := bodyText([]byte(body))
		require.Equal(t, want.String(), text)
		require.False(t, cut)
	}

	deep := []byte(`{"client_secret":"hush","x":` + strings.Repeat("[", 9_990) + strings.Repeat("1,", 100_000) + `1` + strings.Repeat("]", 9_990) + `}`)
	require.True(t, json.Valid(deep))
	require.Less(t, len(indented(deep, mostBody)), mostBody+100)
	text, cut := bodyText(deep)
	require.True(t, cut)
	require.LessOrEqual(t, len(text), mostBody+100, "what hides a secret may be longer")
	require.NotContains(t, text, "hush")

	text, cut = bodyText([]byte(`no JSON ` + strings.Repeat("x", mostBody)))
	require.True(t, cut)
	require.Contains(t, text, "no JSON")
}
