package api

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The answers in docs/check.md have the form of real answers, including all fields. The package
// tests runs the commands.
func TestDocumentedChecks(t *testing.T) {
	text, err := os.ReadFile("../../docs/check.md")
	require.NoError(t, err)
	answers := 0
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
		case strings.HasPrefix(line, `{"results"`):
			var a CheckResults
			strict(&a)
		case strings.HasPrefix(line, `{"type"`):
			var p Problem
			strict(&p)
			require.Equal(t, problemTitles[p.Code], p.Title)
			require.Equal(t, problemType(p.Code), p.Type)
		}
	}
	require.Equal(t, 16, answers)
	for _, code := range []string{
		codeMalformedJSON, codeUnknownField, codeDuplicateField, codeInvalidHeader, codeMissingKey, codeInsufficientScope, codeBodyTooLarge,
		codeUnsupportedMediaType, codeInvalidRequest, codeUnknownPlan, codeTenantQuotaExceeded, codeTenantRecordsExceeded, codeKeyLookupUnavailable, codePolicyUnavailable, codeOverloaded,
		codeMalformedRequest, codeHeadersTooLarge,
	} {
		require.Contains(t, string(text), "`"+code+"`")
	}
}
