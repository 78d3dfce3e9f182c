package dashboard

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A misspelled name of a customer still leads to them.
func TestSimilarSubjects(t *testing.T) {
	t.Parallel()
	seen := []seenSubject{{Name: "globex"}, {Name: "acme-corp"}, {Name: "user_1"}}
	for text, want := range map[string]string{"acme-crop": "acme-corp", "acmecorp": "acme-corp", "Globax": "globex", "initech": "", "user_9": "user_1"} {
		got := similar(seen, text)
		require.Equal(t, want == "", got == nil, text)
		if got != nil {
			require.Equal(t, want, got.Name, text)
		}
	}
	require.Equal(t, 0, editDistance("same", "same", 9))
	require.Equal(t, 3, editDistance("", "abc", 9))
	require.Equal(t, 1, editDistance("abcd", "acbd", 1))
	require.Equal(t, 3, editDistance("unknown", "user_42", 2), "more than two")
}

// A customer who is not registered can be found, and the result says that they are limited.
func TestSearchFindsUnregisteredSubjects(t *testing.T) {
	s := newStack(t)
	s.staff()
	s.fill(s.a, "mark")
	require.True(t, s.check("acme-corp", 20).Allowed)
	require.False(t, s.check("acme-corp", 1).Allowed)

	b := s.as("support@example.com")
	for _, page := range []string{"/search?q=corp", "/search?fragment=options&q=corp"} {
		got := b.get(page)
		require.Equal(t, http.StatusOK, got.status)
		require.Contains(t, got.body, "/subjects/acme-corp", page)
		require.Contains(t, got.body, "denied recently", page)
	}
	for _, page := range []string{"/subjects", "/subjects?q=corp", "/subjects?q=acme"} { // one list, with what was denied
		require.Regexp(t, `(?s)href="/subjects/acme-corp">acme-corp</a></th> ?<td><span class="badge bad">limited</span></td> ?<td class="num" data-label="Checks">1</td>`, b.get(page).body, page)
	}
	s.check("ada mark", 1)
	got := b.get("/subjects?q=mark")
	require.Equal(t, 1, strings.Count(got.body, `href="/subjects/ada%20mark"`))
	require.NotContains(t, got.body, "not registered")
	got = b.get("/subjects/acme-crop")
	require.Contains(t, got.body, "No checks seen")
	require.Contains(t, got.body, `Did you mean <a href="/subjects/acme-corp">acme-corp</a>?`)
	require.NotContains(t, got.body, ">active<")
	require.Contains(t, b.get("/subjects/acme-corp").body, ">limited<")
	require.NotContains(t, s.as("bob@example.com").get("/search?q=corp").body, "/subjects/acme-corp", "another tenant's")
}
