package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// If checkJSON accepts a document, the decoder decodes it without loss: no member is lost to a
// duplicate, and nothing is replaced.
func FuzzCheckJSON(f *testing.F) {
	for _, seed := range []string{
		`{"slug":"r","limit":1,"window":"1s"}`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `[1,2`, `{} {}`, "\"\xff\"", `"\ud800"`, `-0`, `1e400`,
		` null `, `[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]`, "\ufeff{}", `{"labels":{"a.b":null}}`, `{"":{"":{}}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if p := checkJSON(data); p != nil {
			require.Contains(t, []string{codeMalformedJSON, codeDuplicateField}, p.Code)
			return
		}
		var tree any
		require.NoError(t, jsonFormat.Unmarshal(data, &tree))
		require.True(t, json.Valid(data))
		require.LessOrEqual(t, depthOf(tree), maxJSONDepth)
	})
}

func depthOf(v any) (depth int) {
	switch v := v.(type) {
	case map[string]any:
		for _, member := range v {
			depth = max(depth, depthOf(member))
		}
	case []any:
		for _, item := range v {
			depth = max(depth, depthOf(item))
		}
	default:
		return 0
	}
	return depth + 1
}

func TestManyEntityTags(t *testing.T) {
	t.Parallel()
	tags := strings.Repeat(`"v1",`, maxTags)
	for _, values := range [][]string{{tags}, {tags[:len(tags)/2], tags[len(tags)/2:]}} {
		found, _, ok := parseTags(values)
		require.True(t, ok)
		require.Len(t, found, maxTags)
		_, _, ok = parseTags(append(values, `"v2"`))
		require.False(t, ok)
	}
}

// Clients can send any entity tags. Each parsed tag was sent, and a list is never read as *.
func FuzzEntityTags(f *testing.F) {
	for _, seed := range []string{`"v1"`, `W/"v1", "x"`, `*`, `,"a",,`, `"a`, `"a" "b"`, ``, `W/`, `"*"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		tags, any, ok := parseTags([]string{value})
		require.False(t, any && len(tags) > 0)
		require.True(t, !ok || any || len(tags) > 0, "an empty list is malformed")
		for _, tag := range tags {
			require.Contains(t, value, tag)
			if v := versionOf(tag); v != noVersion {
				require.Equal(t, tag, etagOf(v))
			}
		}
	})
}
