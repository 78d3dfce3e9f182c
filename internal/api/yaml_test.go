package api

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The cost of a hostile body is proportional to its length: a body of four times the length
// allocates at most six times the memory, and at most six times as often.
func TestYAMLCost(t *testing.T) {
	const size = maxConfigBody / 64
	cost := func(text string) (bytes, allocations float64) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		out, p := jsonOfYAML(t.Context(), []byte(text))
		runtime.ReadMemStats(&after)
		if p == nil {
			require.True(t, json.Valid(out))
		}
		return float64(after.TotalAlloc - before.TotalAlloc), float64(after.Mallocs - before.Mallocs)
	}
	for name, text := range map[string]func(size int) string{
		"comments": filled("", "#\n", ""), "list": filled("[", "a,", "]"), "keys": filled("", "a: b\n", ""), "flow keys": filled("{", "a: b,", "}"), "blank": filled("", "\n", ""),
		"quotes": filled("'", "''", "'"), "escapes": filled(`"`, `\n`, `"`), "long": filled("a: ", "x", ""), "questions": filled("", "? ", ""), "anchors": filled("", "&a ", ""),
		"folded": filled("a: >\n", " x\n", ""), "indents": filled("", "- a\n", ""), "comments between": filled("", "- #\n", ""), "tags": filled("", "!a ", ""), "opens": filled("", "[{", ""),
		"documents": filled("", "---\n", ""), "spaces": filled("a:", " ", "b"), "distinct": distinctKeys,
		"long key": func(size int) string { // with a pointer of half the document to each item
			return "? \"" + strings.Repeat("k", size/2) + "\"\n: [" + strings.Repeat("0,", size/4) + "0]\n"
		},
		"keys of many items": func(size int) string {
			return strings.Repeat("{\""+strings.Repeat("k", 1000)+"\": ", 12) + filled("[", "0,", "0]")(size-12*1005) + strings.Repeat("}", 12)
		},
	} {
		t.Run(name, func(t *testing.T) {
			cost(text(size)) // what is made once
			bytes, allocations := cost(text(size))
			moreBytes, moreAllocations := cost(text(4 * size))
			const slack, few = 1 << 20, 2000
			t.Logf("%.0f and %.0f bytes, %.0f and %.0f allocations", bytes, moreBytes, allocations, moreAllocations)
			require.LessOrEqual(t, moreBytes, 6*bytes+slack)
			require.LessOrEqual(t, moreAllocations, 6*allocations+few)
			require.LessOrEqual(t, moreBytes, 1000.0*4*size, "nor more than a thousand bytes, returned and allocated again, for one")
		})
	}
}

// filled returns texts of a given length that repeat one part.
func filled(before, again, after string) func(size int) string {
	return func(size int) string { return before + strings.Repeat(again, size/len(again)) + after }
}

func distinctKeys(size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "k%d: 1\n", i)
	}
	return b.String()
}

// If a document is accepted, its JSON converted to YAML has the same meaning.
func FuzzJSONOfYAML(f *testing.F) {
	f.Add([]byte(configYAML))
	for _, text := range oddTexts {
		f.Add([]byte("a: " + text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		out, p := jsonOfYAML(context.Background(), data)
		if p != nil {
			require.Contains(t, []string{codeMalformedYAML, codeDuplicateField}, p.Code)
			return
		}
		if checkJSON(out) != nil {
			return
		}
		var tree any
		require.NoError(t, json.Unmarshal(out, &tree))
		if !onlyOurs(tree) {
			return
		}
		back, p := jsonOfYAML(context.Background(), yamlOf(out))
		require.Nil(t, p, "%s", yamlOf(out))
		require.JSONEq(t, string(out), string(back))
	})
}

// onlyOurs reports whether a value has nothing that documents never contain: null and fractions.
func onlyOurs(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, member := range v {
			if !onlyOurs(member) {
				return false
			}
		}
		return true
	case []any:
		return !slices.ContainsFunc(v, func(item any) bool { return !onlyOurs(item) })
	case float64:
		return v == float64(int32(v))
	}
	return v != nil
}
