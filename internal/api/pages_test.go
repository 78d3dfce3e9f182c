package api

import (
	"io/fs"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	errorpages "weir/docs/errors"
)

// A problem's type is a link. Every code has a page, and every page has a code.
func TestEveryProblemCodeHasItsPage(t *testing.T) {
	pages, err := fs.Glob(errorpages.Pages, "*.md")
	require.NoError(t, err)
	var want []string
	for code := range problemTitles {
		want = append(want, problemSlug(code)+".md")
	}
	require.ElementsMatch(t, want, pages)
	for code, title := range problemTitles {
		text, err := errorpages.Pages.ReadFile(problemSlug(code) + ".md")
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(text), "# "+code+"\n\n"+title+".\n"), "the page of %s begins with code and title", code)
	}
}

// The table of failures contains only codes with a title. newProblem would panic otherwise.
func TestFailuresNameKnownCodes(t *testing.T) {
	for _, f := range failures {
		p := problemOf(f.err)
		require.Equal(t, f.status, p.Status)
		require.Equal(t, f.code, p.Code)
		require.NotContains(t, p.Detail, f.err.Error(), "inner text stays inside")
		if f.status == http.StatusServiceUnavailable {
			require.Positive(t, p.retryAfter, "a client of %s is told when to try again", f.code)
		}
	}
}
