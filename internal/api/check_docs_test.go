package api

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What docs/check.md shows is what a reader gets: its requests are read as it says, and its answers
// have the shape of ours, to the last field.
func TestDocumentedChecks(t *testing.T) {
	text, err := os.ReadFile("../../docs/check.md")
	require.NoError(t, err)
	requests, answers := 0, 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		strict := func(v any) {
			d := json.NewDecoder(strings.NewReader(line))
			d.DisallowUnknownFields()
			require.NoError(t, d.Decode(v), line)
			answers++
		}
		switch {
		case strings.HasPrefix(line, `{"allowed"`):
			var a CheckAnswer
			strict(&a)
			require.Equal(t, a.Allowed, a.Error == nil, line)
		case strings.HasPrefix(line, `{"type"`):
			var p Problem
			strict(&p)
			require.Equal(t, problemTitles[p.Code], p.Title)
			require.Equal(t, problemType(p.Code), p.Type)
		case strings.HasPrefix(line, `{"checks"`):
			var d decoder
			_, p := d.decodeBatch([]byte(line))
			require.NotNil(t, p, "the page shows how it is refused")
			requests++
		case strings.HasPrefix(line, `{"slug"`): // the configuration that the examples use
		case strings.HasPrefix(line, `{"`):
			_, p := decodeOne(line)
			require.Equal(t, strings.Contains(line, "Subject"), p != nil, line)
			requests++
		}
	}
	require.Equal(t, 8, requests)
	require.Equal(t, 9, answers)
	for _, code := range []string{
		codeMalformedJSON, codeUnknownField, codeDuplicateField, codeInvalidHeader, codeMissingKey, codeInsufficientScope, codeBodyTooLarge,
		codeUnsupportedMediaType, codeInvalidRequest, codeUnknownPlan, codeTenantQuotaExceeded, codeKeyLookupUnavailable, codePolicyUnavailable, codeOverloaded,
	} {
		require.Contains(t, string(text), "`"+code+"`")
	}
}
