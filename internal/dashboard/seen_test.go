package dashboard

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
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
	require.Equal(t, 0, new(speller).distance("same", "same", 9))
	require.Equal(t, 3, new(speller).distance("", "abc", 9))
	require.Equal(t, 1, new(speller).distance("abcd", "acbd", 1))
	require.Equal(t, 3, new(speller).distance("unknown", "user_42", 2), "more than two")
}

// Distances are those of the complete table, for names of any form.
func TestDistances(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	name := func() string {
		text := make([]byte, random.IntN(12))
		for i := range text {
			text[i] = 'a' + byte(random.IntN(3))
		}
		return string(text)
	}
	p := new(speller)
	for range 20_000 {
		a, b, most := name(), name(), random.IntN(6)
		require.Equal(t, min(wholeDistance(a, b), most+1), p.distance(a, b, most), "%q %q %d", a, b, most)
	}
}

// wholeDistance computes all distances of parts of two names.
func wholeDistance(a, b string) int {
	table := make([][]int, len(a)+1)
	for i := range table {
		table[i] = make([]int, len(b)+1)
		for j := range table[i] {
			switch {
			case i == 0 || j == 0:
				table[i][j] = i + j
				continue
			case a[i-1] == b[j-1]:
				table[i][j] = table[i-1][j-1]
			default:
				table[i][j] = 1 + table[i-1][j-1]
			}
			table[i][j] = min(table[i][j], table[i-1][j]+1, table[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				table[i][j] = min(table[i][j], table[i-2][j-2]+1)
			}
		}
	}
	return table[len(a)][len(b)]
}

// A search compares a name with thousands of long ones in milliseconds, even if all of them differ
// only at their ends.
func TestCostOfSimilarSubjects(t *testing.T) {
	t.Parallel()
	seen := make([]seenSubject, 500)
	for i := range seen {
		seen[i].Name = strings.Repeat("ab", 88) + fmt.Sprintf("%06d", i) + strings.Repeat("x", 74)
	}
	p := new(speller)
	require.Nil(t, p.closest(seen, strings.Repeat("ab", 88)+strings.Repeat("y", 80)))
	require.LessOrEqual(t, p.cells, len(seen)*limit.MaxNameBytes*(2*mostTypos+1), "of %d in all tables", len(seen)*limit.MaxNameBytes*limit.MaxNameBytes)
	require.Equal(t, seen[7].Name, p.closest(seen, strings.Replace(seen[7].Name, "abab", "abba", 1)).Name, "a long name with a typo is still found")
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
