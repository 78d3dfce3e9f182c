package limit

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The number of rules that a check evaluates is limited by the script.
func TestMaxMatching(t *testing.T) {
	rules := []Rule{{Resource: "*"}, {Resource: "orders:*"}, {Resource: "orders:create"}, {Resource: "orders:create*"}, {Resource: "billing"}, {Resource: "orders:*", Mode: Off}}
	most, pattern := MaxMatching(rules)
	require.Equal(t, 4, most)
	require.Contains(t, []string{"orders:create", "orders:create*"}, pattern)
	most, _ = MaxMatching(nil)
	require.Zero(t, most)
}

// maxMatchingByPairs is the definition of MaxMatching.
func maxMatchingByPairs(rules []Rule) (most int, pattern string) {
	for i := range rules {
		base := strings.TrimSuffix(rules[i].Resource, "*")
		n := 0
		for j := range rules {
			if rules[j].Mode != Off && Matches(rules[j].Resource, base) {
				n++
			}
		}
		if n > most {
			most, pattern = n, rules[i].Resource
		}
	}
	return most, pattern
}

// Sorting gives the result of comparing all pairs of rules.
func TestMaxMatchingIsThatOfPairs(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	parts := []string{"a", "b", "ab", ":", "\xff", "é"}
	for range 20_000 {
		rules := make([]Rule, random.IntN(12))
		for i := range rules {
			var text strings.Builder
			for range random.IntN(5) {
				text.WriteString(parts[random.IntN(len(parts))])
			}
			if random.IntN(2) == 0 {
				text.WriteString("*")
			}
			rules[i].Resource = text.String()
			if random.IntN(4) == 0 {
				rules[i].Mode = Off
			}
		}
		most, pattern := MaxMatching(rules)
		wantMost, wantPattern := maxMatchingByPairs(rules)
		require.Equal(t, wantMost, most, rules)
		require.Equal(t, wantPattern, pattern, rules)
	}
}

// So many rules could not be compared in pairs within the time of a test.
func TestMaxMatchingOfVeryManyRules(t *testing.T) {
	most, pattern := MaxMatching(differentRules(1_000_000))
	require.Equal(t, 1, most)
	require.Equal(t, "service-0:*", pattern)
}

func differentRules(n int) []Rule {
	rules := make([]Rule, n)
	for i := range rules {
		rules[i].Resource = fmt.Sprintf("service-%d:*", i)
	}
	return rules
}

func BenchmarkMaxMatching(b *testing.B) {
	rules := differentRules(MaxRules)
	b.ReportAllocs()
	for b.Loop() {
		MaxMatching(rules)
	}
}

func BenchmarkMaxMatchingByPairs(b *testing.B) {
	rules := differentRules(MaxRules)
	for b.Loop() {
		maxMatchingByPairs(rules)
	}
}
